"""What a store answers, as errors of ours: which pass, and which do not."""

from __future__ import annotations

import errno
import re
from typing import Final

from distcache.errors import (
    AccessDenied,
    DistcacheError,
    ObjectChanged,
    ObjectMissing,
    StorageError,
)

STATUS: Final = re.compile(r"status code: (\d{3})")
CODE: Final = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
# Codes of answers with status 400 or 403, for which there may be other credentials later.
EXPIRED: Final = ("ExpiredToken", "RequestTimeTooSkewed", "TokenRefreshRequired", "RequestExpired")
SLOW: Final = ("SlowDown", "TooManyRequests", "ServiceUnavailable", "Throttling")
# Of the client's own errors: all others are of the connection.
PERMANENT: Final = (
    "without LOCATION",
    "non-partial",
    "Requested ",
    "Missing",
    "not valid",
    "invalid",
    "builder error",
    "parse",
    "canonicalize",
    "LocalFileSystem",
    "credential",
)
# Of its errors about an answer that is not the one to the request: a proxy, or one of many
# gateways, may give it once.
ODD: Final = (
    "non-partial",
    "Requested ",
    "Content-Range",
    "CONTENT_RANGE",
    "Failed to parse",
    "Header missing",
)
ODD_STATUS: Final = (304, 416, 421)
REFUSED: Final = re.compile(r"(?:invalid peer certificate: |InvalidCertificate\(\s*)(\w+)")
UNTRUSTED: Final = (
    "the certificate of the store is not trusted ({}); if the store has its own authority, "
    "set AWS_CA_BUNDLE to a file with the certificate of that authority"
)
URL: Final = re.compile(r"https?://\S+")  # of requests: it is not the user's own name for it
MAX_WORDS: Final = 300  # characters of a store's own words
CLOCK: Final = "; this machine's clock differs from the store's: set it"
RENEW_CREDENTIALS: Final = "; the credentials may have expired: renew them"
ANSWERS: Final = {
    "AccessDenied": "; or there is no such object, and s3:ListBucket is not allowed",
    "RequestTimeTooSkewed": CLOCK,
    "ExpiredToken": "; the credentials have expired: renew them",
    "TokenRefreshRequired": "; the credentials have expired: renew them",
    "RequestExpired": CLOCK,
}


class OddAnswer(Exception):
    """An answer that is not the one to the request; its words say what is odd."""


def short_text(error: BaseException) -> str:
    """Return the first words of a client's message, without its own state and the request's."""
    text = str(error).partition("Debug source")[0]
    found = CODE.search(text)
    status = STATUS.search(text)
    if status is not None:
        return f"status {status[1]}{f' {found[1]}' if found else ''}"
    return URL.sub("the store", " ".join(text.split()))[:MAX_WORDS]


def _status_of(error: BaseException) -> int:
    found = STATUS.search(str(error).partition("Debug source")[0])
    return int(found[1]) if found else 0


def _code_of(error: BaseException) -> str:
    found = CODE.search(str(error).partition("Debug source")[0])
    return found[1] if found else ""


def is_slow_down(error: BaseException) -> bool:
    """Return whether a store asks for fewer requests."""
    return _status_of(error) in (429, 503) or _code_of(error) in SLOW


def has_no_reason(error: BaseException) -> bool:
    """Return whether an answer to HEAD denies access: it has no words that say why."""
    return _status_of(error) in (400, 401, 403) and not _code_of(error)


def is_transient(error: BaseException) -> bool:
    """Return whether an error may pass: no answer, a cut one, or one of status 5xx, 408 or 429."""
    kind, status = type(error).__name__, _status_of(error)
    if kind != "GenericError" or is_untrusted(error) or is_odd(error):
        return False
    if status:
        return status >= 500 or status in (408, 429)
    # Without the request's URL: a bucket or a key may be called anything.
    text = URL.sub("", str(error).partition("Debug source")[0])
    return not any(words in text for words in PERMANENT)


def is_odd(error: BaseException) -> bool:
    """Return whether an answer is not one to what was asked for."""
    if isinstance(error, OddAnswer) or type(error).__name__ == "NotModifiedError":
        return True
    if type(error).__name__ != "GenericError":
        return False
    status = _status_of(error)
    text = URL.sub("", str(error).partition("Debug source")[0])
    return status in ODD_STATUS or (not status and any(words in text for words in ODD))


def is_untrusted(error: BaseException) -> bool:
    """Return whether the certificate of a store was refused."""
    return _refusal_of(error) is not None


def _refusal_of(error: BaseException) -> str | None:
    """Return why a certificate was refused: only the client's state says it, and no URL does."""
    found = REFUSED.search(URL.sub("", str(error)))
    return None if found is None or _status_of(error) else found[1]


def to_storage_error(error: BaseException, url: str, source: str) -> DistcacheError:
    """Return the error of ours for one of the client's.

    Parameters
    ----------
    error : exception
        Exception of obstore.
    url : str
        URL of the object.
    source : str
        Source of the credentials, for messages; never their values.
    """
    kind, status, code = type(error).__name__, _status_of(error), _code_of(error)
    refusal = _refusal_of(error)
    text = short_text(error) if refusal is None else UNTRUSTED.format(refusal)
    if kind == "PreconditionError":
        return ObjectChanged(url)
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(url, "no such object")
    denied = kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403)
    unsaid = status == 400 and not code  # answers to HEAD have no words
    if denied or unsaid or code in EXPIRED:
        advice = RENEW_CREDENTIALS if unsaid else ANSWERS.get(code, "")
        return AccessDenied(
            url, f"access is denied ({text}), with credentials from {source}{advice}"
        )
    if "without LOCATION" in str(error) or status in (301, 307):
        return StorageError(url, "is in another region, or its endpoint is wrong; set AWS_REGION")
    if "Missing" in text or "credential" in text.lower():
        return AccessDenied(url, f"there are no credentials ({text}); searched {source}")
    number = errno.EIO if is_transient(error) else errno.EPROTO
    return StorageError(url, f"cannot be read: {text}", number)
