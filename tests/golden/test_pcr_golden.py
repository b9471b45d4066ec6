"""Sets of the original: every image at every fidelity, from disk and memory, whole and damaged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pcr_helpers import copy_golden

from tensorcom.errors import PcrError
from tensorcom.pcr import PcrReader

ROOT = Path(__file__).parent / "pcr"
EXPECTED = json.loads((ROOT / "expected.json").read_text())
GROUPS = 10


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=["directory", "memory"])
def root_of(request):
    """Return where a set is: in a directory, or in fsspec's memory."""
    if request.param == "directory":
        yield lambda kind: ROOT / kind
        return
    memory = fsspec.filesystem("memory")
    for kind in EXPECTED:
        for path in (ROOT / kind).iterdir():
            memory.pipe_file(f"/golden/{kind}/{path.name}", path.read_bytes())
    yield lambda kind: f"memory://golden/{kind}"
    memory.rm("/golden", recursive=True)


def test_every_golden_set_is_tested():
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} == {*EXPECTED, "train"}
    assert all(len(records) == 3 for records in EXPECTED.values())


@pytest.mark.parametrize("kind", EXPECTED)
def test_records_have_the_expected_hashes_at_every_fidelity(kind, root_of):
    with PcrReader(root_of(kind)) as reader:
        names = [record.name for record in reader.records]
        assert sorted(names) == sorted(EXPECTED[kind])
        for i, name in enumerate(names):
            expected = EXPECTED[kind][name]
            assert reader.records[i].parts.tolist() == expected["part_lengths"]
            assert reader.records[i].samples == len(expected["labels"])
            for groups in range(1, GROUPS + 1):
                images, labels = reader.read_record(i, scan_groups=groups)
                assert labels.tolist() == expected["labels"]
                hashes = expected["jpeg_sha256_by_scans"][groups - 1]
                assert [sha256(image) for image in images] == hashes
            images, _ = reader.read_record(i)
            assert [sha256(image) for image in images] == hashes


@pytest.mark.parametrize("kind", EXPECTED)
def test_samples_have_the_expected_hashes_at_every_fidelity(kind, root_of):
    with PcrReader(root_of(kind)) as reader:
        order = [EXPECTED[kind][record.name] for record in reader.records]
        labels = [label for record in order for label in record["labels"]]
        assert reader.labels.tolist() == labels
        for groups in range(1, GROUPS + 1):
            hashes = [h for r in order for h in r["jpeg_sha256_by_scans"][groups - 1]]
            found = [reader.sample(i, scan_groups=groups) for i in range(len(reader))]
            assert [(sha256(jpeg), label) for jpeg, label in found] == list(
                zip(hashes, labels, strict=True)
            )


# -- damage -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Return a function that opens a set with a file changed, and gives all that can be read."""
    root = tmp_path_factory.mktemp("damaged")
    for kind in EXPECTED:
        copy_golden(kind, root / kind)

    def read(kind, name, data):
        path = root / kind / name
        good = path.read_bytes()
        path.write_bytes(data)
        try:
            with PcrReader(root / kind) as reader:
                return [reader.read_record(i) for i in range(len(reader.records))]
        except PcrError as exc:
            return exc
        finally:
            path.write_bytes(good)

    return read


FILES = [
    (kind, path.name) for kind in EXPECTED for path in sorted((ROOT / kind).iterdir())
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), FILES)
@settings(max_examples=60)
@given(data=st.data())
def test_changed_bytes_are_an_error_or_change_no_more_than_themselves(damaged, kind, name, data):
    good = (ROOT / kind / name).read_bytes()
    offset = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[offset] ^= data.draw(st.integers(1, 255))
    found = damaged(kind, name, changed)
    if isinstance(found, PcrError):
        return
    whole = damaged(kind, name, good)
    if name.endswith(".pcr"):  # sets of the original have no checksums
        pairs = [(a, b) for (x, _), (y, _) in zip(found, whole, strict=True)
                 for a, b in zip(x, y, strict=True) if a != b]  # fmt: skip
        labels = sum(int((a != b).sum()) for (_, a), (_, b) in zip(found, whole, strict=True))
        assert len(pairs) + labels <= 1
        assert all(abs(len(a) - len(b)) <= 2 for a, b in pairs)  # FF D9 may come or go
    else:  # an index without a record, or in another order, is an index
        good_records = [[sha256(image) for image in images] for images, _ in whole]
        assert all([sha256(i) for i in images] in good_records for images, _ in found)


@pytest.mark.parametrize(("kind", "name"), FILES)
@settings(max_examples=25)
@given(data=st.data())
def test_cut_files_are_an_error_or_change_nothing(damaged, kind, name, data):
    good = (ROOT / kind / name).read_bytes()
    found = damaged(kind, name, good[: data.draw(st.integers(0, len(good) - 1))])
    if isinstance(found, PcrError):
        return
    assert not name.endswith(".pcr")
    whole = damaged(kind, name, good)
    known = [images for images, _ in whole]
    assert all(images in known for images, _ in found)


def test_the_index_of_the_original_repeats_itself():
    from tensorcom.pcr.wire import decode_index

    data = (ROOT / "protobuf" / "PCR_index.pb").read_bytes()
    entry = data[: data[1] + 2]
    assert data.startswith(GROUPS * entry)
    assert len(decode_index(data)) == 3
    assert np.array(decode_index(data)[0][1]).sum() == (ROOT / "protobuf/PCR_0.pcr").stat().st_size
