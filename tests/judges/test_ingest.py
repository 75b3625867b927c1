"""Megatron-Core reads what is ingested, and its own builder writes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer, processors

from distcache.megatron.tokenizers import MegatronTokenizer
from tests.edit.test_copy_corpora import write_multimodal
from tests.ingest.test_text import run
from tests.ingest.test_tokens import ROWS
from tests.ingest.test_tokens import run as run_tokens
from tests.judges.megatron import RELEASE, DType, IndexedDataset, IndexedDatasetBuilder
from tests.judges.tokenizers import build_tokenizer
from tests.support import here, texts
from tests.support.corpora import LENGTHS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

OPTIONS = [(False, "plain"), (True, "plain"), (True, "lists")]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tokenizers that were trained on the spot."""
    directory = tmp_path_factory.mktemp("tokenizers")
    documents = texts.documents(300)
    texts.train_bpe(directory / "tokenizer.json", documents)
    texts.train_sentencepiece(directory / "pieces.model", documents)
    return directory


def preprocess(
    texts_of: list[Any],
    tokenize: Any,
    end: int | None,
    vocabulary: int,
    prefix: Path,
    *,
    keep: bool = False,
) -> None:
    """Write what Megatron's preprocessing makes of texts, or only of those that have tokens."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(vocabulary))
    for text in texts_of:
        ids: list[int] = []
        lengths: list[int] = []
        for sentence in text if isinstance(text, list) else [text]:
            found = tokenize(sentence)
            if found:
                ids += found
                lengths.append(len(found))
        if not ids and not keep:
            continue
        if ids and end is not None:
            ids.append(end)
            lengths[-1] += 1
        builder.add_document(ids, lengths)
    builder.finalize(f"{prefix}.idx")


def require_same_files(first: Path, second: Path) -> None:
    """Compare both files of two corpora."""
    for suffix in (".bin", ".idx"):
        assert Path(f"{first}{suffix}").read_bytes() == Path(f"{second}{suffix}").read_bytes()


@pytest.mark.parametrize(("append_eod", "kind"), OPTIONS)
@pytest.mark.parametrize("library", ["tokenizers", "sentencepiece"])
def test_text_is_what_megatrons_preprocessing_writes(
    library: str, append_eod: bool, kind: str, tokenizers: Path, tmp_path: Path
) -> None:
    """To the last byte, with the end of documents or without, for texts and lists of texts."""
    documents: list[Any] = texts.documents(300)
    if kind == "lists":
        documents = [text.splitlines() for text in documents]
    path = texts.write_jsonl(tmp_path / "a.jsonl", documents)
    if library == "tokenizers":
        file = tokenizers / "tokenizer.json"
        bpe = Tokenizer.from_file(str(file))
        bpe.no_truncation()
        bpe.no_padding()
        end, size = 0, 600

        def tokenize(text: str) -> Any:
            return bpe.encode(text, add_special_tokens=False).ids
    else:
        file = tokenizers / "pieces.model"
        model = sentencepiece.SentencePieceProcessor(model_file=str(file))
        tokenize, end, size = model.encode_as_ids, model.eos_id(), model.get_piece_size()
    end = end if append_eod else None
    for empty in ("drop", "keep"):
        ours, theirs = tmp_path / f"ours-{empty}", tmp_path / f"theirs-{empty}"
        run([path], file, ours, append_eod=append_eod, empty=empty)
        preprocess(documents, tokenize, end, size, theirs, keep=empty == "keep")
        require_same_files(ours, theirs)


TEMPLATES = {"first": "<s> $A", "both": "<s> $A <|end|>", "neither": "$A"}


@pytest.mark.few(2)
@pytest.mark.parametrize("include", [None, False, True])
@pytest.mark.parametrize("template", TEMPLATES)
def test_special_tokens_are_added_as_the_release_does(
    template: str, include: bool | None, tokenizers: Path, tmp_path: Path
) -> None:
    """By its own tokenizer of Hugging Face, to the last byte, with empty texts."""
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    bpe = Tokenizer.from_file(str(tokenizers / "tokenizer.json"))
    bpe.post_processor = processors.TemplateProcessing(
        single=TEMPLATES[template].replace("<|end|>", texts.END),
        special_tokens=[("<s>", 1), (texts.END, 0)],
    )
    bpe.save(str(directory / "tokenizer.json"))
    stated = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(stated | {"eos_token": texts.END}))
    flags: dict[str, Any] = {"tokenizer_hf_include_special_tokens": include is True}  # until 0.16
    flags["tokenizer_hf_no_include_special_tokens"] = include is False  # since 0.17
    flags |= {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(directory)}
    given = msgspec.convert(flags, MegatronTokenizer)
    theirs = build_tokenizer(given)
    documents = ["", *texts.documents(200), "", "<s> in a text", f"{texts.END}"]
    path = texts.write_jsonl(tmp_path / "a.jsonl", documents)
    options = {"special_tokens": include, "megatron": RELEASE, "append_eod": True}
    run([path], directory, tmp_path / "ours", empty="keep", **options)
    preprocess(documents, theirs.tokenize, theirs.eod, 600, tmp_path / "theirs", keep=True)
    require_same_files(tmp_path / "ours", tmp_path / "theirs")


def test_megatron_reads_what_was_ingested(tmp_path: Path) -> None:
    """Sequence by sequence, and its document indices."""
    path = texts.write_shard(tmp_path / "a.parquet", ROWS)
    run_tokens([path], tmp_path / "ours", vocabulary=120, token_type="megatron")
    dataset = IndexedDataset(str(tmp_path / "ours"), multimodal=False, mmap=True)
    assert [dataset[place].tolist() for place in range(len(dataset))] == ROWS
    assert dataset.document_indices.tolist() == list(range(len(ROWS) + 1))
    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for row in ROWS:
        builder.add_document(row, [len(row)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    require_same_files(tmp_path / "ours", tmp_path / "theirs")


@pytest.mark.parametrize("multimodal", [False, True])
def test_merging_is_megatrons_own(
    multimodal: bool, corpora: dict[str, str], tmp_path: Path
) -> None:
    """Documents, boundaries, modes."""
    prefixes = [corpora[name] for name in ("plain", "holes", "second")]
    if multimodal:
        prefixes = [write_multimodal(tmp_path / name, LENGTHS[name]) for name in ("plain", "holes")]
    here.merge(prefixes, tmp_path / "ours")
    builder = IndexedDatasetBuilder(
        str(tmp_path / "theirs.bin"), dtype=np.uint16, multimodal=multimodal
    )
    for prefix in prefixes:
        builder.add_index(prefix)
    builder.finalize(str(tmp_path / "theirs.idx"))
    require_same_files(tmp_path / "ours", tmp_path / "theirs")


def test_megatron_reads_what_was_converted(tmp_path: Path) -> None:
    """A multimodal pair without its modes."""
    pictures = write_multimodal(tmp_path / "pictures", LENGTHS["plain"])
    here.convert(pictures, tmp_path / "text", drop_modes=True)
    with_modes = IndexedDataset(pictures, multimodal=True, mmap=True)
    without = IndexedDataset(str(tmp_path / "text"), multimodal=False, mmap=True)
    for place in range(len(without)):
        assert without[place].tolist() == with_modes[place][0].tolist()
