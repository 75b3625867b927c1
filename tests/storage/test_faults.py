"""What a store's answers mean: which errors pass, whatever its objects are called."""

from __future__ import annotations

import pytest

from distcache.errors import ConfigError
from distcache.storage.access import Access
from distcache.storage.bucket import Bucket
from distcache.storage.faults import PERMANENT, is_transient


class GenericError(Exception):
    """The client's error of a request, by its name."""


@pytest.mark.parametrize("word", PERMANENT)
def test_words_in_names(word: str) -> None:
    """Words in names are of the URL, and turn no retries off."""
    url = f"http://store:9000/lake/{word.replace(' ', '-')}-study/c.bin"
    sending = f"Generic S3 error: error sending request for url ({url}): connection reset"
    assert is_transient(GenericError(sending))
    assert not is_transient(GenericError(f"Generic S3 error: {word} of {url}"))


def test_credentials_that_cannot_be_read_for_a_moment() -> None:
    """Those that were right before remain; without any, the error is final."""
    found = [ConfigError("no keys"), {"access_key_id": "a"}, ConfigError("half written")]

    def read() -> dict[str, object]:
        answer = found.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    bucket = Bucket(Access(bucket="lake", credentials=read))
    with pytest.raises(ConfigError, match="no keys"):
        bucket.read_credentials()
    assert bucket.read_credentials() == {"access_key_id": "a"}
    kept = bucket.read_credentials()
    assert kept["access_key_id"] == "a"
    assert "expires_at" in kept
