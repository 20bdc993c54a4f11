"""A tiny model's server in a process of its own, which a test may kill: `serve_tiny.py SECONDS`
takes so long over every step. Its first line is its address."""

import sys
import time

from serving import Serving
from tiny import tiny_engine


def main(seconds):
    engine = tiny_engine(max_batch=4)
    step = engine.loop.step

    def slowly():
        time.sleep(seconds)
        step()

    engine.loop.step = slowly
    running = Serving(engine)
    running.socket.listen()  # a client that reads the address may connect at once
    sys.stdout.write(f"{running.url}\n")
    sys.stdout.flush()
    running.server.run(sockets=[running.socket])


if __name__ == "__main__":
    main(float(sys.argv[1]))
