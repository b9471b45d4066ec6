"""Fits with one backend of Keras, in a process of its own: prints what each case saw, as JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from pathlib import Path

import keras
import numpy as np
from fit_helpers import (
    BATCH,
    LABELS,
    PER_BATCH,
    SAMPLES,
    SIZE,
    fit,
    message_of,
    new_model,
    seen,
    server,
    write_records,
)

from tensorcom.testing.loopback import LoopbackServer
from tensorcom_keras import PcrPyDataset, StreamPyDataset

# -- streams ---------------------------------------------------------------------------------------


def stream(workers, length=None, steps=None, **arguments):
    with server() as serving:
        data = StreamPyDataset(serving.url, length=length, workers=workers, timeout_s=20)
        with contextlib.closing(data):
            return fit(data, steps_per_epoch=steps, **arguments)


def stream_two_fits(length, steps):
    """Fit one epoch, then another with the same model, then one with a new model."""
    with server() as serving:
        data = StreamPyDataset(serving.url, length=length, timeout_s=20)
        with contextlib.closing(data):
            model = new_model()
            fits = [
                fit(data, model=m, epochs=1, steps_per_epoch=steps) for m in (model, model, None)
            ]
    return [one["epochs"][0] for one in fits]


def stream_evaluate():
    """Evaluate twice, predict twice, each with four batches; one was looked at before."""
    with server() as serving:
        data = StreamPyDataset(serving.url, length=4, timeout_s=20)
        with contextlib.closing(data):
            first = data[0][1]
            model = new_model()
            found = [list(seen_after(model, data)) for _ in range(2)]
            found += [model.predict(data, verbose=0)[:, 2].tolist() for _ in range(2)]
    return {"first": int(first[0]) // 2, "found": found}


def seen_after(model, data, **arguments):
    model.evaluate(data, verbose=0, **arguments)
    return seen(model)


def stream_validation():
    with server() as training, server() as validation:
        data = StreamPyDataset(training.url, length=4, timeout_s=20)
        other = StreamPyDataset(validation.url, length=2, timeout_s=20)
        with contextlib.closing(data), contextlib.closing(other):
            result = fit(data, validation_data=other)
            result["next"] = int(next(iter(other))[1][0]) // 2
    return result


def stream_to_its_end():
    """Predict what has no length, through a generator."""
    with server(count=5) as serving:
        data = StreamPyDataset(serving.url, timeout_s=20)
        with contextlib.closing(data):
            return new_model().predict(iter(data), verbose=0)[:, 2].tolist()


def weights():
    """Return the losses with class weights and with sample weights of 0, and with both."""
    nothing = np.zeros(PER_BATCH, np.float32)
    by_class = stream(1, 4, class_weight=dict.fromkeys(range(LABELS), 0.0))
    with server(nothing) as serving:
        data = StreamPyDataset(serving.url, length=4, timeout_s=20)
        with contextlib.closing(data):
            by_sample = fit(data)
            both = message_of(lambda: fit(data, class_weight={0: 1.0}))
    return {"class": by_class["loss"], "sample": by_sample["loss"], "both": both}


def stream_silent_at_the_end():
    """Fit on all that a server has that then says nothing; what reads ahead waits for more."""
    with server(count=6, end=False) as serving:
        data = StreamPyDataset(serving.url, timeout_s=3)
        with contextlib.closing(data):
            return fit(data, steps_per_epoch=2)["epochs"]


def conversion():
    """Return what Keras is given of arrays of some dtypes, and whether it is their memory."""
    dtypes = ["uint8", "float32", "uint32", "bool"]
    given = [np.arange(4).astype(dtype) for dtype in dtypes]
    kept = []

    def arrange(*arrays):
        kept.extend(arrays)
        return {str(array.dtype): array for array in arrays}, arrays[0]

    with LoopbackServer([given]) as serving:
        data = StreamPyDataset(serving.url, arrange=arrange, timeout_s=20)
        with contextlib.closing(data):
            images, label = data[0]
    found = {"label": type(label).__name__}
    for array, expected in zip(kept, given, strict=True):
        value = images[str(array.dtype)]
        assert keras.ops.convert_to_numpy(value).tolist() == expected.tolist()
        own = value.data_ptr() if hasattr(value, "data_ptr") else value.ctypes.data
        found[str(array.dtype)] = [type(value).__name__, own == array.ctypes.data]
    return found


def stream_errors():
    with server(count=3, end=False) as serving:
        data = StreamPyDataset(serving.url, length=4, timeout_s=3)
        with contextlib.closing(data):
            silent = message_of(lambda: fit(data))
    absent = StreamPyDataset(serving.url, timeout_s=0.3)
    with contextlib.closing(absent):
        gone = message_of(lambda: fit(absent, steps_per_epoch=2))
    with server(count=6) as serving:
        data = StreamPyDataset(serving.url, length=4, workers=2, timeout_s=20)
        with contextlib.closing(data):
            ended = message_of(lambda: fit(data))
    with server(count=6) as serving:
        data = StreamPyDataset(serving.url, timeout_s=20)
        with contextlib.closing(data):
            endless = message_of(lambda: fit(data, steps_per_epoch=4))
    weight = np.zeros(PER_BATCH, np.float32)
    with server(weight, weight) as serving:
        data = StreamPyDataset(serving.url, length=4, timeout_s=20)
        with contextlib.closing(data):
            four = message_of(lambda: fit(data))
    return {"silent": silent, "gone": gone, "ended": ended, "endless": endless, "four": four}


# -- records ---------------------------------------------------------------------------------------


def records(root, workers, **arguments):
    """Fit 3 epochs, each with scan groups of its own."""
    with contextlib.closing(
        PcrPyDataset(root, batch_size=BATCH, size=SIZE, workers=workers)
    ) as data:

        def set_groups(epoch):
            data.scan_groups = (1, 2, None)[epoch]

        return fit(data, begins=[set_groups], **arguments)


def records_in_steps(root):
    """Fit 4 epochs of 3 steps: two of the set."""
    with contextlib.closing(PcrPyDataset(root, batch_size=BATCH, size=SIZE)) as data:
        return fit(data, steps_per_epoch=3, epochs=4)["epochs"]


def records_saved(root):
    """Save in a callback at the end of each epoch; fit one epoch from the first of these states."""
    arguments = {"batch_size": BATCH, "size": SIZE}
    states = []
    with contextlib.closing(PcrPyDataset(root, **arguments)) as data:
        save = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: states.append(data.state_dict())  # noqa: ARG005
        )
        new_model().fit(data, epochs=2, verbose=0, callbacks=[save])
    with contextlib.closing(PcrPyDataset(root, **arguments)) as data:
        data.load_state_dict(json.loads(json.dumps(states[0])))
        return fit(data, epochs=2)["epochs"]


def records_single_batch(root):
    """Fit epochs of one batch, with two models."""
    with contextlib.closing(PcrPyDataset(root, batch_size=SAMPLES, size=SIZE)) as data:
        return [*fit(data)["epochs"], *fit(data, epochs=2)["epochs"]]


def records_after_a_stop(root):
    """Stop in the middle of an epoch, and fit on; tell also whether the next epoch comes then."""
    with contextlib.closing(PcrPyDataset(root, batch_size=BATCH, size=SIZE)) as data:

        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
                self.model.stop_training = batch == 1

        model = new_model()
        model.fit(data, callbacks=[Stop()], verbose=0)
        epochs = fit(data, model=model, epochs=1)["epochs"]
        return {"epochs": epochs, "next": data.state_after(0, epoch=2) == _begun(data)}


def _begun(data):
    iterator = iter(data)
    state = data.state_dict()
    del iterator
    return state


def records_resumed(root):
    """Save after two batches of epoch 1, load, fit the rest and one epoch more."""
    with contextlib.closing(PcrPyDataset(root, batch_size=BATCH, size=SIZE)) as data:
        state = data.state_after(2, epoch=1)
        data.load_state_dict(state)
        counts = [data.num_batches, len(data)]
        model = new_model()
        rest = fit(data, model=model, initial_epoch=1, epochs=2)
        whole = fit(data, model=model, initial_epoch=2, epochs=3)
        data.load_state_dict(state)
        wrong = message_of(lambda: fit(data, model=model, initial_epoch=1, epochs=3))
    return {"counts": counts, "epochs": rest["epochs"] + whole["epochs"], "wrong": wrong}


def records_validation(root):
    arguments = {"batch_size": BATCH, "size": SIZE, "augment": "eval", "shuffle": False}
    with (
        contextlib.closing(PcrPyDataset(root, batch_size=BATCH, size=SIZE)) as data,
        contextlib.closing(PcrPyDataset(root, **arguments)) as other,
    ):
        result = fit(data, validation_data=other, validation_steps=2)
        model = new_model()
        return {
            "val_loss": result["val_loss"],
            "validated": result["epochs"],
            "evaluated": [seen_after(model, other, steps=2) for _ in range(2)],
            "predicted": model.predict(other, verbose=0)[:, 2].tolist(),
        }


def records_weighted(root):
    """Fit with weights, and labels as vectors, that `arrange` makes."""

    def arrange(images, labels):
        return images, labels[:, None], np.zeros(len(labels), np.float32)

    with contextlib.closing(
        PcrPyDataset(root, batch_size=BATCH, size=SIZE, arrange=arrange)
    ) as data:
        return fit(data)["loss"]


def records_damaged(own_root):
    write_records(own_root)
    path = own_root / "PCR_1.pcr"
    path.write_bytes(path.read_bytes()[:99])
    arguments = {"batch_size": 2, "size": SIZE, "shuffle": False}
    with contextlib.closing(PcrPyDataset(own_root, **arguments)) as data:
        raised = message_of(lambda: fit(data))
    with contextlib.closing(PcrPyDataset(own_root, on_error="skip", **arguments)) as data:
        return {"raised": raised, "skipped": fit(data)["epochs"]}


# -- all -------------------------------------------------------------------------------------------


def main(folder: Path) -> None:
    root = folder / "set"
    cases = {
        "stream finite 1": lambda: stream(1, 4),
        "stream finite 2": lambda: stream(2, 4),
        "stream endless 1": lambda: stream(1, None, 4),
        "stream endless 2": lambda: stream(2, None, 4),
        "stream in steps": lambda: stream(1, 12, 4),
        "stream single batch": lambda: stream(1, 1),
        "stream single step": lambda: stream(1, None, 1),
        "stream two fits": lambda: stream_two_fits(4, None),
        "stream evaluate": stream_evaluate,
        "stream validation": stream_validation,
        "stream to its end": stream_to_its_end,
        "stream silent at the end": stream_silent_at_the_end,
        "stream errors": stream_errors,
        "conversion": conversion,
        "weights": weights,
        "records 1": lambda: records(root, 1),
        "records 2": lambda: records(root, 2, batch_size=99),
        "records in steps": lambda: records_in_steps(root),
        "records saved": lambda: records_saved(root),
        "records single batch": lambda: records_single_batch(root),
        "records after a stop": lambda: records_after_a_stop(root),
        "records resumed": lambda: records_resumed(root),
        "records validation": lambda: records_validation(root),
        "records weighted": lambda: records_weighted(root),
        "records damaged": lambda: records_damaged(folder / keras.backend.backend()),
    }
    results = {}
    for name, case in cases.items():
        started = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results[name] = {"result": case()}
        # Keras warns of its own variables.
        texts = {str(w.message) for w in caught if "__array__" not in str(w.message)}
        results[name]["warnings"] = sorted(texts)
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
