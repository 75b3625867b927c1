from typing import Any

import numpy as np
from numpy.typing import NDArray

def instructions() -> str: ...

class Mt19937:
    def __init__(self, seed: int) -> None: ...
    def next32(self) -> int: ...
    def shuffle(
        self, values: NDArray[np.int32] | NDArray[np.uint32] | NDArray[np.int64], stop: int = 1
    ) -> None: ...
    def skip_shuffle(self, size: int, stop: int = 1) -> None: ...
    def draw(self, first: int, count: int) -> NDArray[np.uint64]: ...

class Permutation:
    def __init__(self, seed: int, size: int) -> None: ...
    @property
    def position(self) -> int: ...
    def next(self, out: NDArray[np.int64]) -> None: ...
    def skip(self, count: int) -> None: ...

class Cursor:
    def __init__(self, position: int, token: int, sample: int) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def sample(self) -> int: ...

class Blender:
    @staticmethod
    def by_weight(weights: NDArray[np.float64], fused: bool = False) -> Blender: ...
    @staticmethod
    def exhaustive(sizes: NDArray[np.int64], fused: bool = False) -> Blender: ...
    def next(self, corpora: NDArray[np.int16], samples: NDArray[np.int64]) -> None: ...
    def skip(self, steps: int) -> None: ...
    def resume(self, taken: NDArray[np.int64]) -> None: ...
    @property
    def taken(self) -> list[int]: ...

class SequenceFacts:
    @property
    def tokens(self) -> int: ...
    @property
    def empty(self) -> int: ...
    @property
    def negative_count(self) -> int: ...
    @property
    def first_negative(self) -> int: ...
    @property
    def misplaced_count(self) -> int: ...
    @property
    def first_misplaced(self) -> int: ...

class Mapping:
    def __init__(self, descriptor: int, size: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def intact(self) -> bool: ...
    @staticmethod
    def faults() -> int: ...
    def release(self, begin: int, end: int) -> None: ...

def gather(
    values: NDArray[np.int32],
    positions: NDArray[np.int32] | NDArray[np.int64],
    out: NDArray[np.int32],
) -> None: ...

NO_LINK: int

def draws_within(
    generator: Mt19937,
    first: int,
    begin: int,
    end: int,
    steps: NDArray[np.uint32],
    draws: NDArray[np.uint32],
) -> int: ...
def link_steps(
    steps: NDArray[np.uint32],
    draws: NDArray[np.uint32],
    begin: int,
    latest: NDArray[np.uint32],
    links: NDArray[np.uint32],
) -> None: ...
def group_by_range(
    keys: NDArray[np.uint32], bounds: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]: ...
def build_small_sections(
    lengths: tuple[NDArray[np.int32], ...],
    rules: NDArray[np.int64],
    sequence_length: int,
    extra_token: bool,
    documents: NDArray[np.int32],
    rows: NDArray[np.int32],
    samples: NDArray[np.uint32],
) -> None: ...

TOO_LONG: int

def look_up_lengths(
    narrow: NDArray[np.uint16],
    lengths: NDArray[np.int32],
    begin: int,
    sequences: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None: ...
def emit_boundaries(
    lengths: NDArray[np.int32],
    slice_begin: int,
    sequence_length: int,
    extra_token: bool,
    cursor: Cursor,
    pairs: NDArray[np.int32] | NDArray[np.int64],
) -> int: ...
def check_sequences(
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int64],
    begin: int,
    end: int,
    item_size: int,
) -> SequenceFacts: ...
def find_outside(
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int64],
    begin: int,
    end: int,
    item_size: int,
    size: int,
) -> tuple[int, int]: ...
def read_ranges(
    descriptor: int,
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> tuple[int, int]: ...
def narrow_tokens(values: NDArray[Any], limit: int, out: NDArray[Any]) -> int: ...
def first_outside(values: NDArray[Any], limit: int) -> int: ...
def first_descent(bounds: NDArray[np.int64], begin: int, end: int) -> int: ...

class TextScanner:
    UNKNOWN: int
    PLAIN: int
    OTHER: int
    def __init__(self, words: list[str]) -> None: ...
    def scan(
        self, texts: list[str], known: NDArray[np.uint8]
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]: ...

class Section:
    def __init__(
        self,
        document_index: NDArray[np.int32],
        sample_index: NDArray[np.int32] | NDArray[np.int64],
        shuffle_index: NDArray[np.uint32] | NDArray[np.int64],
        lengths: NDArray[np.int32],
        offsets: NDArray[np.int64],
        type_code: int,
        extra_token: bool,
        shards: NDArray[np.int64] | None = None,
        multiple: int = 1,
    ) -> None: ...

class SampleRules:
    def __init__(
        self, pad: int, end_of_document: int, mask_end_of_document: bool, reset_positions: bool
    ) -> None: ...

def read_samples(
    sections: list[Section],
    samples: NDArray[np.int64],
    descriptors: NDArray[np.int32],
    begins: NDArray[np.int64],
    first: int,
    rules: SampleRules,
    tokens: NDArray[np.int64],
    labels: NDArray[np.int64],
    loss_mask: NDArray[np.float32],
    positions: NDArray[np.int64],
    ends: NDArray[np.uint8] | None = None,
    bounds: NDArray[np.int32] | None = None,
    longest: NDArray[np.int32] | None = None,
    true_bounds: NDArray[np.int32] | None = None,
    masks: NDArray[np.int32] | None = None,
) -> tuple[int, int, int, int]: ...
def find_ranges(
    sections: list[Section], samples: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]: ...

class PackedCounts:
    @property
    def rows(self) -> int: ...
    @property
    def documents(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def cut(self) -> int: ...
    @property
    def left_out(self) -> int: ...
    @property
    def empty(self) -> int: ...

def count_packed(
    lengths: NDArray[np.int32],
    row_length: int,
    most_documents: int,
    cuts_longer: bool,
    multiple: int,
) -> PackedCounts: ...
def fill_entries(lengths: NDArray[np.int32], begin: int, out: NDArray[np.int64]) -> None: ...
def pack_documents(
    entries: NDArray[np.int64],
    row_length: int,
    most_documents: int,
    cuts_longer: bool,
    multiple: int,
    first_entry: int,
    documents: NDArray[np.int32],
    starts: NDArray[np.int32] | NDArray[np.int64],
) -> None: ...

class PrefetchBuffer:
    def __init__(self, descriptor: int) -> None: ...
    def add_source(self, whole: int, packed: bool) -> int: ...
    def set_unpackers(self, count: int) -> None: ...
    def set_usual_budget(self, budget: int) -> None: ...
    def open_stream(self) -> int: ...
    def close_stream(self, stream: int) -> None: ...
    def announce(
        self, stream: int, ranges: NDArray[np.int64], ends: NDArray[np.int64], budget: int
    ) -> None: ...
    def finish_readings(self, readings: NDArray[np.int64]) -> None: ...
    def fetch(
        self, ranges: NDArray[np.int64], files: NDArray[np.int32], seconds: float
    ) -> list[int]: ...
    def take(self, seconds: float, ahead: bool) -> list[tuple[int, int, int, int, bool]]: ...
    def store(self, taken: int, content: NDArray[np.uint8]) -> None: ...
    def fail(self, taken: int) -> None: ...
    def close(self) -> None: ...
    def status(self) -> dict[str, int]: ...

def trace_parts(
    sections: list[Section | None], members: NDArray[np.int16], samples: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]: ...
def deal_steps(
    sections: list[Section | None],
    members: NDArray[np.int16],
    samples: NDArray[np.int64],
    row_length: int,
    batch: int,
    ranks: int,
    micro_batch: int,
    places: NDArray[np.uint32],
    work: NDArray[np.float64],
) -> None: ...
def find_samples(section: Section, wanted: NDArray[np.uint64]) -> NDArray[np.int64]: ...
def find_positions(
    members: NDArray[np.int16], samples: NDArray[np.int64], wanted: list[NDArray[np.int64]]
) -> NDArray[np.int64]: ...
def count_members(
    members: NDArray[np.int16], window: int, counts: NDArray[np.int64]
) -> tuple[int, int, int]: ...
def sum_section(
    section: Section,
    samples: int,
    first: int,
    trained: NDArray[np.int64],
    documents: NDArray[np.uint16],
    squares: NDArray[np.float32],
    tokens: NDArray[np.int32],
) -> tuple[int, int, int, int, int]: ...
def find_visits(
    section: Section, rows: NDArray[np.uint16], first: int, whole: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.uint16]]: ...
def count_visits(
    trained: NDArray[np.int64],
    lengths: NDArray[np.int64],
    visits: NDArray[np.int64],
    classes: NDArray[np.int64],
) -> tuple[int, int, float]: ...
def sum_windows(
    members: NDArray[np.int16],
    samples: NDArray[np.int64],
    window: int,
    rows: list[tuple[Section, NDArray[np.uint16], NDArray[np.float32], NDArray[np.int32]]],
    documents: NDArray[np.int64],
    tokens: NDArray[np.int64],
    squares: NDArray[np.float64],
    most_squares: NDArray[np.float32],
) -> None: ...
