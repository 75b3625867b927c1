"""Where endpoints and credentials are from: the environment, AWS's files, MSC's profiles."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from distcache.errors import ConfigError
from distcache.storage.access import Access, environment_access, identity_of
from distcache.storage.msc import profile_access
from distcache.storage.url import address_of

S3 = address_of("s3://bucket/key")
MSC = address_of("msc://mine/key")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with profiles."""
    aws = tmp_path / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = MARKED-D\n"
        "[work]\naws_access_key_id = W\naws_secret_access_key = MARKED-W\n"
        "aws_session_token = MARKED-T\n"
    )
    (aws / "config").write_text(
        "[default]\nregion = eu-central-1\n"
        "[profile work]\nregion = us-west-2\nendpoint_url = https://r2.example\n"
        f"[profile process]\ncredential_process = {sys.executable} {tmp_path / 'keys.py'}\n"
        "[profile login]\nsso_session = corporate\n"
        "[profile away]\nservices = theirs\nlogin_session = one\n"
        "[services theirs]\ns3 =\n  endpoint_url = https://theirs.example\n"
    )
    (tmp_path / "keys.py").write_text(
        "import json\nprint(json.dumps({'Version': 1, 'AccessKeyId': 'P', 'SecretAccessKey': "
        "'MARKED-P', 'Expiration': '2030-01-01T00:00:00Z'}))\n"
    )
    return tmp_path


def access(home: Path, **environment: str) -> Access:
    """Return what an environment leads to."""
    return environment_access(S3, {"HOME": str(home), **environment})


def test_the_default_profile(home: Path) -> None:
    """The default profile is that of AWS's own tools."""
    found = access(home)
    assert (found.region, found.endpoint) == ("eu-central-1", None)
    assert found.credentials is not None
    assert found.credentials()["access_key_id"] == "D"


def test_a_named_profile(home: Path) -> None:
    """A named profile has its own region, endpoint and token."""
    found = access(home, AWS_PROFILE="work")
    assert (found.region, found.endpoint) == ("us-west-2", "https://r2.example")
    assert found.credentials is not None
    assert found.credentials()["token"] == "MARKED-T"
    assert "work" in found.source


def test_the_environment_comes_first(home: Path) -> None:
    """Keys, region and endpoint."""
    found = access(
        home,
        AWS_PROFILE="none",
        AWS_ACCESS_KEY_ID="E",
        AWS_SECRET_ACCESS_KEY="MARKED-E",
        AWS_REGION="auto",
        AWS_ENDPOINT_URL_S3="http://minio:9000",
        AWS_ENDPOINT_URL="http://other",
    )
    assert (found.region, found.endpoint) == ("auto", "http://minio:9000")
    assert found.credentials is None, "the client takes them from the environment"


def test_renewed_files_are_read_again(home: Path) -> None:
    """What was written since is what counts."""
    found = access(home)
    (home / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = N\naws_secret_access_key = MARKED-N\n"
    )
    assert found.credentials is not None
    assert found.credentials()["access_key_id"] == "N"


def test_a_process(home: Path) -> None:
    """Returns credentials, and is asked again in time."""
    found = access(home, AWS_PROFILE="process")
    assert found.credentials is not None
    credentials = found.credentials()
    assert credentials["access_key_id"] == "P"
    assert credentials["expires_at"] > datetime.now(UTC)


def test_a_process_that_fails(home: Path) -> None:
    """A process that fails is named, without what it wrote."""
    (home / "keys.py").write_text("print('MARKED'); raise SystemExit(1)")
    found = access(home, AWS_PROFILE="process")
    assert found.credentials is not None
    with pytest.raises(ConfigError, match="credential_process") as raised:
        found.credentials()
    assert "MARKED" not in str(raised.value)


def test_public_buckets(home: Path) -> None:
    """Public buckets need no credentials."""
    found = access(home, AWS_SKIP_SIGNATURE="true")
    assert found.unsigned
    assert found.credentials is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"AWS_PROFILE": "none"}, "no such profile"),
        ({"AWS_CA_BUNDLE": "/nonexistent"}, "AWS_CA_BUNDLE"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:99999"}, "AWS_ENDPOINT_URL, .*: Port out of range"),
    ],
)
def test_what_is_wrong(home: Path, environment: dict[str, str], words: str) -> None:
    """It is said."""
    with pytest.raises(ConfigError, match=words):
        access(home, **environment)


def test_single_sign_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left to botocore; what cannot be had is said, and how to install botocore."""
    found = access(home, AWS_PROFILE="login")
    assert found.credentials is not None
    with pytest.raises(ConfigError, match=r"sso_session of profile 'login'"):
        found.credentials()
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[s3\]"):
        access(home, AWS_PROFILE="login")


def test_services_and_the_other_variable(home: Path) -> None:
    """A profile may be named by either variable, and have its endpoint from its services."""
    found = access(home, AWS_DEFAULT_PROFILE="away")
    assert found.endpoint == "https://theirs.example"
    assert found.source.startswith("login_session of profile 'away'")


def test_a_broken_file(home: Path) -> None:
    """A broken file is named, and not quoted."""
    (home / ".aws" / "credentials").write_text("MARKED without a section\n")
    with pytest.raises(ConfigError, match="credentials") as raised:
        access(home)
    assert "MARKED" not in str(raised.value)


def test_nothing_shows_a_secret(home: Path) -> None:
    """Nothing shows a secret, whatever stands for it."""
    found = [access(home), access(home, AWS_PROFILE="work"), access(home, AWS_PROFILE="process")]
    assert "MARKED" not in repr(found)


def profile(tmp_path: Path, provider: dict[str, Any], **more: Any) -> Access:
    """Return what a profile of the Multi-Storage Client leads to."""
    path = tmp_path / "msc.json"
    path.write_text(json.dumps({"profiles": {"mine": {"storage_provider": provider, **more}}}))
    return profile_access(
        MSC, {"HOME": str(tmp_path), "MSC_CONFIG": str(path), "KEY": "K", "SECRET": "MARKED"}
    )


def test_a_profile_of_a_bucket(tmp_path: Path) -> None:
    """It has a prefix, an endpoint, and credentials from variables."""
    found = profile(
        tmp_path,
        {
            "type": "s3",
            "options": {
                "base_path": "corpora/2026",
                "endpoint_url": "https://store.example",
                "region_name": "eu",
            },
        },
        credentials_provider={
            "type": "S3Credentials",
            "options": {"access_key": "${KEY}", "secret_key": "$SECRET"},
        },
    )
    assert (found.bucket, found.prefix, found.region) == ("corpora", "2026", "eu")
    assert found.endpoint == "https://store.example"
    assert found.credentials is not None
    assert found.credentials()["secret_access_key"] == "MARKED"
    assert "MARKED" not in repr(found)


def test_a_profile_of_a_directory(tmp_path: Path) -> None:
    """A profile of a directory is a directory."""
    found = profile(tmp_path, {"type": "file", "options": {"base_path": "/data"}})
    assert (found.kind, found.bucket) == ("file", "/data")


@pytest.mark.parametrize(
    ("provider", "more", "words"),
    [
        ({"type": "oci"}, {}, "'oci'"),
        ({"type": "s3", "options": {}}, {}, "base_path"),
        ({"type": "s3", "options": {"base_path": "${NOT_SET}"}}, {}, "NOT_SET"),
        (
            {"type": "s3", "options": {"base_path": "b"}},
            {"metadata_provider": {"type": "manifest"}},
            "metadata_provider",
        ),
        (
            {"type": "s3", "options": {"base_path": "b"}},
            {"credentials_provider": {"type": "Other"}},
            "Other",
        ),
    ],
)
def test_profiles_that_are_not_known(
    tmp_path: Path, provider: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    """They are refused, and what is not known is named."""
    with pytest.raises(ConfigError, match=words):
        profile(tmp_path, provider, **more)


@pytest.mark.parametrize(
    "document",
    [
        {"profiles": None},
        {"profiles": {"mine": {"storage_provider": "s3"}}},
        {"profiles": {"mine": {"storage_provider": {"type": ["s3"]}}}},
        {"profiles": {"mine": {"storage_provider": {"type": "s3", "options": ["a"]}}}},
        {
            "profiles": {
                "mine": {"storage_provider": {"type": "s3", "options": {"base_path": "s3://b"}}}
            }
        },
        {
            "profiles": {
                "mine": {
                    "storage_provider": {
                        "type": "s3",
                        "options": {"base_path": "b", "endpoint_url": 5},
                    }
                }
            }
        },
        {
            "profiles": {
                "mine": {
                    "storage_provider": {"type": "s3", "options": {"base_path": "b"}},
                    "credentials_provider": {"type": "S3Credentials", "options": {"access_key": 1}},
                }
            }
        },
    ],
)
def test_malformed_profiles(tmp_path: Path, document: Any) -> None:
    """Malformed profiles are one clear error."""
    path = tmp_path / "msc.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"msc\.json|mine"):
        profile_access(MSC, {"HOME": str(tmp_path), "MSC_CONFIG": str(path)})


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://u:MARKED@host:9000",
        "http://host/?sig=MARKED",
        "http://host#MARKED",
        "localhost:9000",
        "ftp://host",
        " http://host",
        "::::",
    ],
)
def test_endpoints_that_are_none(home: Path, endpoint: str) -> None:
    """They are refused without being shown, before any client sees them."""
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL") as raised:
        access(home, AWS_ENDPOINT_URL=endpoint)
    assert "MARKED" not in str(raised.value)


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"])
def test_keys_with_a_line_break(home: Path, name: str) -> None:
    """As mounted secrets often end with: the variable is named, and not its value."""
    with pytest.raises(ConfigError, match=name) as raised:
        access(home, **{name: "MARKED\n"})
    assert "MARKED" not in str(raised.value)


@pytest.mark.parametrize("expiration", [5, "soon"])
def test_times_of_a_process(home: Path, expiration: Any) -> None:
    """What is no time is an error."""
    keys = {"AccessKeyId": "P", "SecretAccessKey": "S", "Expiration": expiration}
    (home / "keys.py").write_text(f"import json\nprint(json.dumps({keys!r}))\n")
    found = access(home, AWS_PROFILE="process")
    assert found.credentials is not None
    with pytest.raises(ConfigError, match="credential_process"):
        found.credentials()


def test_a_process_that_hangs(home: Path, limit: Callable[..., None]) -> None:
    """It is waited for, but not for ever."""
    limit("distcache.storage.access", PATIENCE=0.5)
    (home / "keys.py").write_text("import time\ntime.sleep(5)\n")
    found = access(home, AWS_PROFILE="process")
    assert found.credentials is not None
    with pytest.raises(ConfigError, match=r"profile 'process' .*: gave no credentials"):
        found.credentials()


def test_the_identity_of_an_environment() -> None:
    """It tells credentials apart, and does not show them."""
    one, other = ({"AWS_SECRET_ACCESS_KEY": value} for value in ("MARKED", "other"))
    assert identity_of(one) != identity_of(other)
    assert identity_of(one) == identity_of({**one, "PATH": "/bin"})
    assert "MARKED" not in identity_of(one)


def test_no_configuration(tmp_path: Path) -> None:
    """No configuration says which variable to set."""
    with pytest.raises(ConfigError, match="MSC_CONFIG"):
        profile_access(MSC, {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)})


def session(account: int, rest: int) -> dict[str, str]:
    """Return the environment of a session of an account."""
    digits = (account << 7 | rest % 128).to_bytes(6, "big") + rest.to_bytes(4, "big")
    name = "ASIA" + base64.b32encode(digits).decode()
    return {
        "AWS_ACCESS_KEY_ID": name,
        "AWS_SECRET_ACCESS_KEY": f"secret {rest}",
        "AWS_SESSION_TOKEN": f"token {rest}",
    }


def test_sessions_of_one_account_share_a_fetcher() -> None:
    """Ranks whose launchers made sessions of one role a second apart; other accounts do not."""
    first = identity_of(session(123_456_789_012, 1))
    assert identity_of(session(123_456_789_012, 2)) == first
    assert identity_of(session(210_987_654_321, 1)) != first
    lasting = {"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": "a"}
    assert identity_of(lasting) != identity_of({**lasting, "AWS_ACCESS_KEY_ID": "AKIA2"})
