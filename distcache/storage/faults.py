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
    if kind != "GenericError":
        return False
    if status:
        return status >= 500 or status in (408, 429)
    # Without the request's URL: a bucket or a key may be called anything.
    text = URL.sub("", str(error).partition("Debug source")[0])
    return not any(words in text for words in PERMANENT)


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
    text = short_text(error)
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
