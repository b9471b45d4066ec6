"""Shards: samples read as a stream and found by their places are the same."""

from __future__ import annotations

import tarfile

import pytest
from convert_helpers import jpeg, make_shard, shard_members

from tensorcom import SourceError
from tensorcom.shards import Span, expand_shards, index_shard, is_plain_tar, local_path, read_shard


def keep(error: SourceError) -> SourceError:
    return error


@pytest.fixture
def members() -> dict[str, bytes]:
    return {
        "__meta__": b"not a sample",
        **shard_members(range(5)),
        "bad/1.jpg": jpeg(1),
        "bad/2.cls": b"1",
        "x.tar.jpeg": jpeg(2),
        "x.cls": b"7",
        "y.JPG": jpeg(3),
        "y.cls": b"8",
    }


def test_places_give_the_samples_of_the_stream(tmp_path, members) -> None:
    shard = make_shard(tmp_path / "a.tar", members)
    streamed = list(read_shard(shard, on_bad=keep))
    indexed = list(index_shard(shard, on_bad=keep))
    data = (tmp_path / "a.tar").read_bytes()
    assert len(streamed) == len(indexed) == 9
    for one, other in zip(streamed, indexed, strict=True):
        if isinstance(one, SourceError):
            assert str(one) == str(other)
            continue
        assert (one.label, one.name, one.place) == (other.label, other.name, other.place)
        offset, size = other.image
        assert isinstance(other.image, Span)
        assert data[offset : offset + size] == one.image
    good = [sample for sample in streamed if not isinstance(sample, SourceError)]
    assert [sample.label for sample in good] == [0, 1, 2, 0, 1, 8]
    assert [sample.name for sample in good][-2:] == ["004.jpg", "y.jpg"]
    assert [
        str(error).partition(": ")[2] for error in streamed if isinstance(error, SourceError)
    ] == [
        "sample's cls is b'', expected a number up to 2147483647",
        "sample has no image, expected one of jpg, jpeg, png, ppm, webp",
        "sample has no image, expected one of jpg, jpeg, png, ppm, webp",
    ]


def test_a_bad_sample_is_an_error_unless_it_is_asked_for(tmp_path, members) -> None:
    shard = make_shard(tmp_path / "a.tar", members)
    with pytest.raises(SourceError, match=r"a\.tar:bad/1: sample's cls is b''"):
        list(read_shard(shard))


def test_only_plain_tars_of_this_machine_have_places(tmp_path) -> None:
    shard = make_shard(tmp_path / "a.tgz", shard_members(range(2)))
    assert not is_plain_tar(tmp_path / "a.tgz")
    for name in (shard, "http://host/a.tar", str(tmp_path / "none.tar")):
        with pytest.raises(SourceError, match="is no plain tar on this machine"):
            list(index_shard(name, on_bad=keep))


def test_a_cut_tar_is_an_error(tmp_path) -> None:
    path = tmp_path / "a.tar"
    make_shard(path, shard_members(range(4)))
    path.write_bytes(path.read_bytes()[:5000])
    for read in (read_shard, index_shard):
        with pytest.raises(SourceError, match=r"a\.tar: cannot be read: "):
            list(read(str(path), on_bad=keep))


def test_a_sparse_member_has_no_place(tmp_path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("1.jpg")
        info.pax_headers = {"GNU.sparse.size": "10", "GNU.sparse.map": "0,1"}
        tar.addfile(info)
    with pytest.raises(SourceError, match=r"a\.tar: member '1\.jpg' is sparse"):
        list(index_shard(str(path), on_bad=keep))


def test_what_is_on_this_machine() -> None:
    assert str(local_path("a/b.tar")) == "a/b.tar"
    assert str(local_path("file:a/b.tar")) == "a/b.tar"
    assert local_path("s3://a/b.tar") is None
    assert local_path("pipe:cat b.tar") is None


def test_a_missing_shard_is_named(tmp_path) -> None:
    make_shard(tmp_path / "0.tar", {})
    with pytest.raises(SourceError, match=r"1\.tar: no such shard"):
        expand_shards(f"{tmp_path}/{{0,1}}.tar")
