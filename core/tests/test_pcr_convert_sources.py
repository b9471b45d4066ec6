"""Sources: the same order each time, what tells that they changed, no trace of having read."""

from __future__ import annotations

import errno
import os
import tarfile
from pathlib import Path

import pytest
from convert_helpers import CLASSES, jpeg, make_folder, make_shard, shard_members

from tensorcom import SourceError
from tensorcom.pcr.conversion.sources import ImageSource, open_source, read_file


def opened(source, **options) -> ImageSource:
    defaults = {"shuffle": None, "seed": 0, "class_names": None, "allow_empty_class": False}
    return open_source(source, **{**defaults, **options})


def listed(source: ImageSource) -> list[tuple[str, object, bytes]]:
    return [(entry.name, entry.label, entry.load()) for entry in source.entries()]


def in_order(count: int = 12) -> list[tuple[str, object, bytes]]:
    found = []
    for number in range(count):
        label = number * len(CLASSES) // count
        found.append((f"{CLASSES[label]}/{number:03}.jpg", label, jpeg(number)))
    return found


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path / "images")


def test_a_folder_in_its_order(folder) -> None:
    source = opened(folder, shuffle=False)
    assert listed(source) == in_order()
    assert (source.class_names, source.count, source.seed) == (CLASSES, 12, None)
    assert [entry.path for entry in source.entries()][0] == str(folder / "ant" / "000.jpg")
    assert listed(opened(f"{folder}/", shuffle=False)) == in_order()


def test_a_folder_is_permuted_by_its_seed_unless_told_not_to(folder) -> None:
    orders = [listed(opened(folder, seed=seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == in_order()
    # No version of numpy may change this: a conversion goes on under another one.
    assert [int(name[4:7]) for name, _, _ in orders[0]] == [11, 3, 2, 1, 8, 6, 0, 7, 4, 10, 5, 9]


def test_a_train_folder_is_taken(folder, tmp_path) -> None:
    (tmp_path / "set" / "val" / "x").mkdir(parents=True)
    folder.rename(tmp_path / "set" / "train")
    assert listed(opened(tmp_path / "set", shuffle=False)) == in_order()


@pytest.mark.parametrize("change", ["content", "time", "name", "class", "another"])
def test_the_fingerprint_of_a_folder_tells_a_change(folder, change) -> None:
    before = opened(folder).fingerprint()
    assert opened(folder).fingerprint() == before
    assert before["images"] == 12
    path = folder / "ant" / "001.jpg"
    status = path.stat()
    if change == "content":
        path.write_bytes(b"x")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif change == "name":
        path.rename(folder / "ant" / "00x.jpg")
    elif change == "class":
        (folder / "ant").rename(folder / "aunt")
    else:
        (folder / "bee" / "x.jpg").write_bytes(b"x")
    assert opened(folder).fingerprint() != before


def test_the_fingerprint_of_a_folder_is_not_its_place(folder, tmp_path) -> None:
    before = opened(folder).fingerprint()
    folder.rename(tmp_path / "elsewhere")
    assert opened(tmp_path / "elsewhere").fingerprint() == before


def test_an_empty_class_counts_for_the_fingerprint(folder) -> None:
    before = opened(folder).fingerprint()
    (folder / "bug").mkdir()
    with pytest.raises(SourceError, match="no images in class 'bug'"):
        opened(folder)
    source = opened(folder, allow_empty_class=True)
    assert source.fingerprint() != before
    assert source.class_names == ("ant", "bee", "bug", "cat")


def test_reading_leaves_no_trace(folder) -> None:
    path = folder / "ant" / "000.jpg"
    os.utime(path, ns=(10**18, 2 * 10**18))
    before = path.stat()
    assert read_file(str(path)) == jpeg(0)
    assert path.stat() == before


def test_a_file_of_another_owner_is_read_all_the_same(folder, monkeypatch) -> None:
    real = os.open

    def not_mine(path, flags, *more):
        if flags & getattr(os, "O_NOATIME", 0):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", not_mine)
    assert read_file(str(folder / "ant" / "000.jpg")) == jpeg(0)


def test_the_fault_of_a_file_is_no_fault_of_the_system(folder, monkeypatch) -> None:
    with pytest.raises(SourceError, match="nothing: cannot be read: No such file"):
        read_file(str(folder / "nothing"))
    with pytest.raises(SourceError, match="ant: cannot be read: Is a directory"):
        read_file(str(folder / "ant"))

    def stale(*args):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "open", stale)
    with pytest.raises(OSError, match="Stale file handle"):
        read_file(str(folder / "ant" / "000.jpg"))


@pytest.fixture
def shards(tmp_path) -> list[str]:
    return [
        make_shard(tmp_path / "0.tar", shard_members(range(5))),
        make_shard(tmp_path / "1.tar", shard_members(range(5, 12))),
    ]


def shard_order() -> list[tuple[str, object, bytes]]:
    return [(f"{number:03}.jpg", number % 3, jpeg(number)) for number in range(12)]


def test_shards_in_their_order(shards, tmp_path) -> None:
    for source in (opened(f"{tmp_path}/{{0..1}}.tar"), opened(shards), opened(tuple(shards))):
        assert listed(source) == shard_order()
        assert (source.class_names, source.count, source.seed) == (None, None, None)
    assert [e.path for e in opened(shards).entries()][5] == f"{shards[1]}:005"


def test_plain_shards_are_permuted_if_asked_for(shards) -> None:
    source = opened(shards, shuffle=True, seed=3)
    assert (source.count, source.seed) == (12, 3)
    assert listed(source) != shard_order()
    assert sorted(listed(source)) == shard_order()
    assert listed(opened(shards, shuffle=True, seed=3)) == listed(source)
    assert listed(opened(shards, shuffle=True, seed=4)) != listed(source)


def test_what_cannot_be_permuted_says_so(shards, tmp_path) -> None:
    packed = make_shard(tmp_path / "2.tgz", shard_members(range(2)))
    assert len(listed(opened([*shards, packed]))) == 14
    for source, reason in [
        ([*shards, packed], r"2\.tgz is no plain tar on this machine, which cannot be shuffled"),
        ("http://host/a.tar", "http://host/a.tar is no plain tar on this machine"),
        ([], "an iterable comes in its own order, which cannot be shuffled: shuffle=False"),
    ]:
        with pytest.raises(SourceError, match=reason):
            opened(source, shuffle=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_bad_samples_of_shards_raise_when_they_are_loaded(tmp_path, shuffle) -> None:
    members = {"a.jpg": jpeg(0), "b.cls": b"1", **shard_members(range(2))}
    entries = list(opened(make_shard(tmp_path / "a.tar", members), shuffle=shuffle).entries())
    assert len(entries) == 4
    bad = {entry.path: entry for entry in entries if entry.label is None}
    assert set(bad) == {f"{tmp_path}/a.tar:a", f"{tmp_path}/a.tar:b"}
    for entry in bad.values():
        with pytest.raises(SourceError, match=r"a\.tar:[ab]: sample"):
            entry.load()


def test_a_tar_that_is_cut_after_it_was_listed_is_named(shards) -> None:
    entries = list(opened(shards[:1], shuffle=True, seed=0).entries())
    with tarfile.open(shards[0]) as tar:
        last = tar.getmember("004.jpg")
    os.truncate(shards[0], last.offset_data + 5)
    cut = next(entry for entry in entries if entry.name == "004.jpg")
    with pytest.raises(SourceError, match=r"0\.tar:004\.jpg: the tar ends within it"):
        cut.load()
    Path(shards[0]).unlink()
    with pytest.raises(SourceError, match=r"0\.tar:004\.jpg: cannot be read: No such file"):
        cut.load()


def test_the_fingerprint_of_shards(shards) -> None:
    before = opened(shards).fingerprint()
    assert before == {
        "kind": "shards",
        "shards": shards,
        "sizes": [Path(shard).stat().st_size for shard in shards],
    }
    assert opened(["http://host/a.tar"]).fingerprint()["sizes"] == [None]


def test_a_missing_source_is_named(tmp_path) -> None:
    with pytest.raises(SourceError, match="nowhere: no such shard"):
        opened(tmp_path / "nowhere")


def test_iterables() -> None:
    samples = [(jpeg(0), 3), [bytearray(jpeg(1)), 4, "b.jpg"], (memoryview(jpeg(2)), 5, "")]
    source = opened(samples, class_names=["a"])
    assert (source.kind, source.count, source.class_names) == ("iterable", 3, ("a",))
    assert source.fingerprint() == {"kind": "iterable"}
    assert listed(source) == [("", 3, jpeg(0)), ("b.jpg", 4, jpeg(1)), ("", 5, jpeg(2))]
    paths = [entry.path for entry in opened(samples).entries()]
    assert paths == ["sample 0", "b.jpg", "sample 2"]
    assert opened(iter(samples)).count is None


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (b"jpeg", r"sample 0 is bytes, expected \(jpeg, label\) or \(jpeg, label, name\)"),
        ((b"jpeg",), "sample 0 is tuple, expected"),
        (("path.jpg", 1), "jpeg and name of str and str, expected bytes and str"),
        ((b"jpeg", 1, b"name"), "jpeg and name of bytes and bytes, expected bytes and str"),
    ],
)
def test_what_is_no_sample_is_an_error(sample, reason) -> None:
    with pytest.raises(SourceError, match=reason):
        list(opened([sample]).entries())


def test_what_is_no_source_is_an_error(folder) -> None:
    with pytest.raises(SourceError, match="source is int, expected a directory, names of shards"):
        opened(5)
    with pytest.raises(ValueError, match="class_names is for shards and iterables"):
        opened(folder, class_names=["a"])


def test_entries_of_a_folder_that_vanishes(folder) -> None:
    source = opened(folder)
    (folder / "ant" / "000.jpg").unlink()
    with pytest.raises(SourceError, match=r"000\.jpg: cannot be read: No such file"):
        source.fingerprint()
