"""`tensorshow`: its arguments, the sheet as a file, and the window's behaviour."""

from __future__ import annotations

import sys
import threading
import types

import numpy as np
import pytest
from PIL import Image

from tensorcom import Connection, MissingDependencyError
from tensorcom.cli import show
from tensorcom.cli.sheet import IMAGENET_MEAN, IMAGENET_STD, draw_sheet
from tensorcom.cli.window import DisplayError, Window, require_window

COLOURS = RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.fixture
def serve(tmp_path):
    """Start a sender in a thread; stop it after the test."""
    stop = threading.Event()
    running = []

    def start(source):
        tx = Connection(f"zrpush+ipc://{tmp_path}/{len(running)}")
        options = {"end": "stream", "stop": stop}
        thread = threading.Thread(target=tx.serve, args=(source,), kwargs=options)
        thread.start()
        running.append((tx, thread))
        return f"zrpull+ipc://{tmp_path}/{len(running) - 1}"

    yield start
    stop.set()
    for tx, thread in running:
        thread.join()
        tx.close(flush=False)


def coloured(count, size=20):
    """Return images of plain colours, red, green, blue in turn."""
    colours = np.array([COLOURS[i % 3] for i in range(count)], np.uint8)
    return np.broadcast_to(colours[:, None, None, :], (count, size, size, 3)).copy()


def colours_of(path, count, columns, tile):
    """Return the colour in the middle of each image of a sheet without labels."""
    with Image.open(path) as sheet:
        wide = (sheet.width - 8) // columns
        places = [(8 + (i % columns) * wide, 8 + (i // columns) * wide) for i in range(count)]
        return [sheet.getpixel((x + tile // 2, y + tile // 2)) for x, y in places]


# -- the command ------------------------------------------------------------------------------


def test_out_writes_a_sheet(serve, tmp_path, capsys):
    out = tmp_path / "sheet.png"
    url = serve([part, np.arange(4, dtype="i4")] for part in np.split(coloured(12), 3))
    argv = ["--out", str(out), "-c", "6", "--columns", "3", "--tile", "100", "--label", "1"]
    assert show.main([*argv, url]) == 0
    assert capsys.readouterr().err == f"tensorshow: wrote {out}: 6 images of 20 × 20 pixels\n"
    with Image.open(out) as sheet:
        assert sheet.format == "PNG"
        assert sheet.width == 3 * 108 + 8
    assert list(tmp_path.glob(".*")) == []


def test_images_of_several_batches_keep_their_pixels(serve, tmp_path):
    big = [np.full((2, 200, 200, 3), 20 * i, np.uint8) for i in range(6)]
    out = tmp_path / "sheet.png"
    argv = ["--out", str(out), "-c", "12", "--columns", "4", "--tile", "100"]
    assert show.main([*argv, serve([part] for part in big)]) == 0
    assert [c[0] for c in colours_of(out, 12, 4, 100)] == [20 * (i // 2) for i in range(12)]


def test_a_short_stream_fills_part_of_a_sheet(serve, tmp_path, capsys):
    out = tmp_path / "sheet.png"
    assert show.main(["--out", str(out), serve([coloured(3)] for _ in range(1))]) == 0
    assert "wrote" in capsys.readouterr().err
    assert colours_of(out, 3, 3, 160) == [RED, GREEN, BLUE]


def test_nchw_floats_and_positions(serve, tmp_path, capsys):
    images = ((coloured(3) / 255 - IMAGENET_MEAN) / IMAGENET_STD).astype(np.float32)
    out = tmp_path / "sheet.png"
    sent = [np.zeros(3, np.int32), np.ascontiguousarray(np.moveaxis(images, -1, 1))]
    argv = ["--out", str(out), "--image", "1", "--layout", "NCHW", "--denormalize"]
    assert show.main([*argv, serve(sent for _ in range(1))]) == 0
    assert colours_of(out, 3, 3, 160) == [RED, GREEN, BLUE]
    assert "denormalized by ImageNet's mean and std" in capsys.readouterr().err


def test_class_names_come_from_a_file(serve, tmp_path, monkeypatch):
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n", encoding="utf-8")
    seen = []
    monkeypatch.setattr(
        show, "draw_sheet", lambda p, labels, s: seen.extend(labels) or draw_sheet(p, labels, s)
    )
    url = serve([coloured(3), np.array([1, 0, 9], "i4")] for _ in range(1))
    out = str(tmp_path / "a.png")
    assert show.main(["--out", out, "--class-names", str(names), url]) == 0
    assert seen == ["1 dog", "0 cat", "9"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--out", "a.jpg"], "--out a.jpg: expected a name that ends in .png"),
        (["--out", "a.png", "--interval-s", "1"], "--interval-s is for a window"),
    ],
)
def test_arguments_that_do_not_go_together(argv, text, capsys):
    assert show.main(argv) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--image", "4"], "--image 4: the batches have 2 tensors"),
        (["--label", "4"], "--label 4: the batches have 2 tensors"),
        (["--label", "0", "--image", "1"], "images of shape (3,) are no NHWC"),
        (["--layout", "NCHW"], "have 20 channels as NCHW"),
        (["--denormalize"], "--denormalize is for float images"),
    ],
)
def test_arguments_that_do_not_fit_the_stream(argv, text, serve, tmp_path, capsys):
    out = tmp_path / "a.png"
    url = serve([coloured(3), np.arange(3, dtype="i4")] for _ in range(1))
    assert show.main(["--out", str(out), *argv, url]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_labels_of_another_number_are_an_error(serve, tmp_path, capsys):
    url = serve([coloured(3), np.arange(2, dtype="i4")] for _ in range(1))
    assert show.main(["--out", str(tmp_path / "a.png"), url]) == 2
    assert "labels of shape (2,) for 3 images; is --label right?" in capsys.readouterr().err


def test_files_that_cannot_be_used(tmp_path, capsys):
    assert show.main(["--out", "a.png", "--class-names", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.endswith("none: No such file or directory\n")
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    assert show.main(["--out", "a.png", "--class-names", str(tmp_path / "latin")]) == 2
    assert capsys.readouterr().err.endswith("latin: not UTF-8 at byte 3\n")


def test_an_unwritable_file_fails_in_one_line(serve, tmp_path, capsys):
    out = tmp_path / "none" / "a.png"
    assert show.main(["--out", str(out), serve([coloured(1)] for _ in range(1))]) == 1
    assert capsys.readouterr().err.endswith("No such file or directory\n")


def test_a_stream_without_images_writes_nothing(serve, tmp_path, capsys):
    out = tmp_path / "a.png"
    assert show.main(["--out", str(out), serve(iter(()))]) == 1
    assert "the stream ended without an image" in capsys.readouterr().err
    assert not out.exists()


def test_without_pillow_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert show.main(["--out", "a.png"]) == 1
    assert "pip install 'tensorcom[images]'" in capsys.readouterr().err


# -- the window -------------------------------------------------------------------------------


def test_without_matplotlib_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert show.main([]) == 1
    err = capsys.readouterr().err
    assert "--out FILE.png" in err
    assert "pip install matplotlib" in err
    with pytest.raises(MissingDependencyError):
        require_window()


def test_without_a_screen_it_names_out(monkeypatch, capsys):
    pyplot = types.SimpleNamespace(get_backend=lambda: "agg")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    assert show.main([]) == 1
    err = capsys.readouterr().err
    assert "--out FILE.png" in err
    assert "pip install PyQt6" in err
    assert err.count("\n") == 1
    with pytest.raises(DisplayError):
        require_window()


class FakeTimer:
    def __init__(self):
        self.callbacks, self.running = [], False

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def start(self):
        self.running = True

    def stop(self):
        self.running = False


class FakePyplot:
    """What Window uses of pyplot and its objects; `show` plays a script of events."""

    def __init__(self, script):
        self.script = script
        self.titles, self.handlers, self.closed, self.intervals = [], {}, 0, []
        self.timer = FakeTimer()
        self.canvas = self

    def subplots(self, **_options):
        return self, self

    def mpl_connect(self, name, handler):
        self.handlers[name] = handler

    def new_timer(self, interval):
        self.intervals.append(interval)
        return self.timer

    def set_title(self, text):
        self.titles.append(text)

    def show(self):
        for event, key in self.script:
            if event == "timer":
                self.timer.callbacks[0]()
            else:
                self.handlers[event](types.SimpleNamespace(key=key))

    def close(self, _figure):
        self.closed += 1

    def set_axis_off(self):
        pass

    clear = draw_idle = set_axis_off

    def imshow(self, _picture):
        pass


def sheets(count):
    return iter([(None, f"sheet {i}") for i in range(count)])


def test_keys_clicks_and_the_timer_show_the_next():
    script = [("key_press_event", " "), ("button_press_event", None), ("timer", None)]
    pyplot = FakePyplot([*script, ("key_press_event", "q")])
    window = Window(pyplot, sheets(9), interval_s=0.5)
    window.run()
    assert pyplot.titles == ["sheet 0", "sheet 1", "sheet 2", "sheet 3"]
    assert pyplot.intervals == [500]
    assert not pyplot.timer.running
    assert pyplot.closed == 1
    assert window.shown == 4


def test_the_end_is_said():
    pyplot = FakePyplot([("key_press_event", "n"), ("key_press_event", "n")])
    Window(pyplot, sheets(1), interval_s=None).run()
    assert pyplot.titles == ["sheet 0", "end of the stream", "end of the stream"]
    assert pyplot.intervals == []


def test_an_error_closes_the_window_and_comes_out():
    def failing():
        yield None, "sheet 0"
        raise ValueError("no labels")

    pyplot = FakePyplot([("key_press_event", "n"), ("key_press_event", "n")])
    with pytest.raises(ValueError, match="no labels"):
        Window(pyplot, failing(), interval_s=None).run()
    assert pyplot.closed >= 1
    assert pyplot.titles == ["sheet 0"]


def test_the_command_opens_a_window(serve, monkeypatch):
    pyplot = FakePyplot([("key_press_event", "n")])
    pyplot.get_backend = lambda: "QtAgg"
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    assert show.main(["-c", "2", serve([coloured(4)] for _ in range(1))]) == 0
    assert pyplot.titles == ["2 images of 20 × 20 pixels"] * 2
