"""Run by the original program's interpreter: sends or receives with its Connection."""

import sys
import time

import numpy as np

from tensorcom import Connection


def batch(number):
    return [np.full((4, 8, 8, 3), number, "uint8"), np.arange(4, dtype="int32") + number]


def main():
    role, url, multipart, count = sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])
    connection = Connection(url, multipart=multipart)
    if role == "receive":
        print("ready", flush=True)
        for _ in range(count):
            images, labels = connection.recv()
            np.testing.assert_array_equal(images, batch(int(labels[0]))[0], strict=True)
            np.testing.assert_array_equal(labels, batch(int(labels[0]))[1], strict=True)
            print(int(labels[0]), flush=True)
        return
    if role == "echo":
        back = Connection(sys.argv[5], multipart=multipart)
        print("ready", flush=True)
        for arrays in connection:
            back.send(arrays, allow64=True)
    number = 0
    while True:  # until the parent has enough and ends this process: linger 0 would lose the last
        connection.send(batch(number % 100))
        number += 1
        time.sleep(0.002)


main()
