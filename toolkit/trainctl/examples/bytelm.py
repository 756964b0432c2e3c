"""
A small real training: a byte-level language model that reads the sources of Python's standard
library.

    python -m trainctl.examples.bytelm --steps 200                      alone, in this terminal
    torchrun --nproc-per-node 2 -m trainctl.examples.bytelm             on two ranks
    command = ["python", "-m", "trainctl.examples.bytelm"]              in run.toml

Interrupted anywhere and resumed, it ends with the very bits of an undisturbed run; what that takes
is said where it is done. Its data is on every machine that has Python.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import random
import sysconfig
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainctl import train
from trainctl.train import inject

VOCABULARY = 256


class Block(nn.Module):
    """Attention to what was before, then a small network, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Batch × time × width in and out."""
        batch, time_, width = x.shape
        qkv = self.to_qkv(self.norm_1(x)).view(batch, time_, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, time_, width))
        return x + self.mlp(self.norm_2(x))


class ByteModel(nn.Module):
    """The next byte from those before it: some 140,000 parameters by default."""

    def __init__(self, context: int, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads=4, dropout=0.1) for _ in range(blocks)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, text: Tensor) -> Tensor:
        """Batch × time of bytes in, batch × time × 256 logits out."""
        x = self.bytes(text) + self.places(torch.arange(text.shape[1]))
        return self.out(self.blocks(x))


class Reader:
    """
    The windows of the text that one rank reads, in an order drawn from the seed.

    `position` counts the windows this rank has read: with the number of ranks it says which come
    next, so it is all that a checkpoint needs to keep of the data.
    """

    def __init__(self, text: bytes, context: int, seed: int, rank: int, world: int) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context
        self._count = (len(text) - 1) // context
        self._rank, self._world = rank, world
        draw = random.Random(seed)
        self._first = draw.randrange(self._count)
        self._stride = draw.randrange(1, self._count)
        while math.gcd(self._stride, self._count) != 1:  # so that every window comes once a round
            self._stride = self._stride % self._count + 1
        self.position = 0

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """`size` windows and, one byte later, what should be said of them."""
        windows = []
        for _ in range(size):
            turn = self.position * self._world + self._rank
            start = (self._first + turn * self._stride) % self._count * self._context
            windows.append(self._text[start : start + self._context + 1].long())
            self.position += 1
        both = torch.stack(windows)
        return both[:, :-1], both[:, 1:]


def read_text(limit_bytes: int = 4_000_000) -> bytes:
    """Modules of the standard library in the order of their names, up to a limit."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    return bytes(text[:limit_bytes])


class Training:
    """Model, optimizer and data of one rank, and how they are saved and restored."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self.args, self.rank, self.world = args, rank, world
        torch.manual_seed(args.seed)  # the same first parameters on all ranks
        self.model = ByteModel(args.context)
        # After its first backward a process rebuilds DDP's buckets, which changes the order in
        # which gradients are summed, and with it the last bits: a resumed run would differ from one
        # that never stopped. find_unused_parameters=True turns that off.
        self.ranks_model: nn.Module = (
            DistributedDataParallel(self.model, find_unused_parameters=True)
            if dist.is_initialized()
            else self.model
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.reader = Reader(read_text(), args.context, args.seed, rank, world)
        self.step = 0
        self.loss = math.nan
        torch.manual_seed(args.seed * 1_000_003 + rank + 1)  # from here on each its own dropout

    def advance(self) -> None:
        """One step."""
        text, following = self.reader.batch(self.args.batch)
        logits = self.ranks_model(text)
        loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        self.loss = loss.item()

    def save(self, folder: Path) -> None:
        """Rank 0 writes what all ranks share, every rank what is its own."""
        if self.rank == 0:
            shared = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "loss": self.loss,
            }
            torch.save(shared, folder / "model.pt")
        own = {"position": self.reader.position, "rng": train.save_rng(), "world": self.world}
        torch.save(own, folder / f"rank-{self.rank}.pt")

    def load(self, folder: Path) -> None:
        """Stand where the checkpoint was saved."""
        shared = torch.load(folder / "model.pt", weights_only=True)
        own = torch.load(folder / f"rank-{self.rank}.pt", weights_only=True)
        if own["world"] != self.world:
            raise SystemExit(f"{folder} was written by {own['world']} ranks, not {self.world}")
        self.model.load_state_dict(shared["model"])
        self.optimizer.load_state_dict(shared["optimizer"])
        self.step, self.loss = shared["step"], shared["loss"]
        self.reader.position = own["position"]
        train.restore_rng(own["rng"])

    def digest(self) -> str:
        """SHA-256 of all parameters."""
        sha256 = hashlib.sha256()
        for name, values in sorted(self.model.state_dict().items()):
            sha256.update(name.encode())
            sha256.update(bytes(values.contiguous().flatten().view(torch.uint8).tolist()))
        return sha256.hexdigest()


def run(training: Training) -> None:
    """Train to the end, or to a stop that all ranks agreed on."""
    args = training.args
    checkpoints = train.Checkpoints(args.checkpoints)

    def save() -> None:
        with checkpoints.saving(training.step) as folder:
            training.save(folder)

    start = checkpoints.latest()
    if start is not None:
        with train.phase("load"):
            training.load(start.path)
    train.loaded(training.step, start)
    say(training, f"starts at step {training.step}")
    while training.step < args.steps:
        began = time.monotonic()
        training.advance()
        train.beat(training.step, training.loss)
        inject.point("step", training.step)
        if training.step % args.log_every == 0 or training.step == args.steps:
            say(training, f"step {training.step}/{args.steps} loss {training.loss:.6f}")
        if training.step % args.save_every == 0 or training.step == args.steps:
            save()
        if train.stop_agreed() and training.step < args.steps:
            if checkpoints.committed_step != training.step:
                save()
            say(training, f"stops at step {training.step} as agreed")
            return
        time.sleep(max(0.0, args.pace_s - (time.monotonic() - began)))
    if checkpoints.committed_step != training.step:
        save()  # the last chance of what was trained to be kept
        if checkpoints.committed_step != training.step:
            raise SystemExit(f"bytelm: step {training.step}, the last one, could not be saved")
    digest = training.digest()
    train.done(training.step, loss=training.loss, params_sha256=digest)
    say(training, f"done at step {training.step} loss {training.loss!r} params_sha256 {digest}")


def say(training: Training, text: str) -> None:
    """One line, from rank 0."""
    if training.rank == 0:
        print(f"bytelm: {text}", flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bytelm", description=__doc__.strip().split("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="steps in all (200)")
    parser.add_argument("--save-every", type=int, default=20, help="steps between saves (20)")
    parser.add_argument("--log-every", type=int, default=10, help="steps between lines (10)")
    parser.add_argument("--pace-s", type=float, default=0.0, help="a step takes at least this (0)")
    parser.add_argument("--seed", type=int, default=1, help="of parameters, data order, dropout")
    parser.add_argument("--batch", type=int, default=4, help="windows a rank and step (4)")
    parser.add_argument("--context", type=int, default=64, help="bytes a window (64)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (0.001)")
    parser.add_argument(
        "--checkpoints",
        help="where they go outside trainctl (bytelm-checkpoints)",
        default="bytelm-checkpoints",
    )
    parser.add_argument(
        "--collective-timeout-s", type=float, default=120.0, help="for any collective (120)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Train alone, or as one of torchrun's ranks."""
    args = parse(argv)
    torch.set_num_threads(1)  # the order of a sum must not depend on how busy the machine is
    torch.use_deterministic_algorithms(True)
    with ExitStack() as stack:
        rank, world = 0, 1
        if "RANK" in os.environ:
            timeout = timedelta(seconds=args.collective_timeout_s)
            dist.init_process_group("gloo", timeout=timeout)
            stack.callback(dist.destroy_process_group)
            rank, world = dist.get_rank(), dist.get_world_size()
        run(Training(args, rank, world))
        if world > 1:
            dist.barrier()  # nobody hangs up while another still reads


if __name__ == "__main__":
    main()
