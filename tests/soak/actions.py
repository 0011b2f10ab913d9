"""What happens to two deployments at random: commands, edits, data, kills and faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soak.world import ENVIRONMENTS, Deployment

if TYPE_CHECKING:
    from collections.abc import Callable

    from soak.world import World

AT_ONCE = 3
LONGEST_S = 240.0
"""No command may take longer, however busy the machine is: it would be stuck."""
EXPECTED = {0, 1, 4, 5, 6}
"""Exit codes that faults, conflicts and failed checks lead to; all others are violations."""
TRIM_S = 20


@dataclass
class Job:
    """A command that runs, and when it is killed, if at all."""

    kind: str
    words: str
    process: subprocess.Popen[Any]
    log: str
    began: float
    dies_at: float | None


class Actions:
    """Does things at random, until it is told to stop.

    Attributes
    ----------
    broken
        Whether PostgreSQL or the store may be away, so that errors are expected.
    """

    def __init__(self, world: World) -> None:
        self.world, self.chance = world, world.chance
        self.jobs: list[Job] = []
        self.n_jobs = 0
        self.former: dict[str, list[Any]] = {d.name: [d.code] for d in world.deployments}
        self.acts: dict[Callable[[], str | None], float] = {
            self.write_raw: 6,
            self.edit: 2.5,
            self.build: 7,
            self.promote: 2,
            self.roll_back: 1.2,
            self.collect: 1.6,
            self.trim: 1,
            self.back_up: 0.7,
            self.publish: 0.8,
            self.verify: 0.4,
            self.want: 2.5,
            self.evaluate: 1,
            self.follow: 0.6,
            self.taint: 0.5,
            self.kill_service: 0.8,
            self.kill_spark: 0.5,
            self.kill_backend: 0.7,
            self.crash_postgres: 0.4,
            self.spoil_store: 1.2,
        }

    # -------------------------------------------------------------------------------- one at a time

    def step(self) -> None:
        """Let one thing happen."""
        self.reap()
        act = self.chance.choices([*self.acts], [*self.acts.values()])[0]
        words = act()
        if words is not None:
            self.world.done[act.__name__.replace("_", " ")] += 1
            self.world.say(words)

    def reap(self) -> None:
        """Kill the commands that are due, and look what came of those that have ended."""
        now = time.monotonic()
        for job in [*self.jobs]:
            code = job.process.poll()
            if code is None and job.dies_at is not None and now >= job.dies_at:
                job.process.kill()
                job.process.wait()
                self.world.kills[job.kind] += 1
                self.world.say(f"killed {job.words} after {now - job.began:.1f} s")
                self.jobs.remove(job)
            elif code is None and now > job.began + LONGEST_S:
                job.process.kill()
                job.process.wait()
                self.world.violate(f"{job.words} does not end (logs/{job.log})")
                self.jobs.remove(job)
            elif code is not None:
                self.jobs.remove(job)
                self.world.say(f"ended {job.words}: {code} after {now - job.began:.1f} s")
                output = (self.world.base / "logs" / job.log).read_text(errors="replace")
                if code not in EXPECTED or "Traceback (most recent" in output:
                    self.world.violate(f"{job.words} ended with {code}: {output[-1500:]}")

    def settle(self) -> None:
        """Wait until no command runs; what is to be killed is."""
        while self.jobs:
            self.reap()
            threading.Event().wait(0.05)

    def launch(self, deployment: Deployment, kind: str, *arguments: str) -> str | None:
        """Start a command in the background, unless too many run."""
        if len(self.jobs) >= AT_ONCE:
            return None
        self.n_jobs += 1
        log = f"{self.n_jobs:04}-{deployment.name}-{kind}.log"
        words = f"{deployment.name}: {' '.join(arguments)}"
        dies = self.chance.random() < 0.35
        after = self.chance.uniform(0.3, 15) if dies else None
        if kind == "trim":
            process = self._script("trim_now.py", str(deployment.root), str(TRIM_S), log=log)
        else:
            process = self.world.start(deployment, *arguments, log=log)
        now = time.monotonic()
        dies_at = None if after is None else now + after
        self.jobs.append(Job(kind, words, process, log, now, dies_at))
        return f"start {words} (logs/{log})"

    def _script(self, name: str, *arguments: str, log: str) -> subprocess.Popen[Any]:
        with (self.world.base / "logs" / log).open("ab") as file:
            return subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name(name)), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def _some(self) -> tuple[Deployment, str]:
        environment = self.chance.choice(ENVIRONMENTS)
        return self.chance.choices(self.world.deployments, (3, 2))[0], environment

    def _selection(self, deployment: Deployment) -> list[str]:
        names = [t.name for t in deployment.texts.tables]
        if self.chance.random() < 0.3:
            return []
        chosen = self.chance.sample(names, self.chance.randrange(1, 4))
        marks = ("", "", "+{}", "{}+", "+{}+")
        return [(self.chance.choice(marks) or "{}").format(name) for name in chosen]

    # ------------------------------------------------------------------------------------- the acts

    def write_raw(self) -> str:
        return self.world.write_raw()

    def edit(self) -> str:
        deployment = self.chance.choice(self.world.deployments)
        former = self.former[deployment.name]
        if len(former) > 1 and self.chance.random() < 0.35:
            former.pop()
            deployment.edit(former[-1])
            return f"{deployment.name}: take the last edit back"
        places = dict(deployment.code)
        place = self.chance.choice(sorted(places))
        choices = [c for c in deployment.texts.places[place] if c != places[place]]
        places[place] = self.chance.choice(choices)
        former.append(tuple(sorted(places.items())))
        deployment.edit(former[-1])
        return f"{deployment.name}: {place} becomes {places[place]}"

    def build(self) -> str | None:
        deployment, environment = self._some()
        more = ["--full-refresh"] if self.chance.random() < 0.1 else []
        selection = self._selection(deployment)
        return self.launch(deployment, "build", "build", *selection, "--env", environment, *more)

    def promote(self) -> str | None:
        deployment, _ = self._some()
        more = ["--allow-stale"] if self.chance.random() < 0.6 else []
        return self.launch(
            deployment, "promote", "promote", "dev", "prod", *self._selection(deployment), *more
        )

    def roll_back(self) -> str | None:
        deployment, environment = self._some()
        return self.launch(deployment, "rollback", "rollback", "--env", environment)

    def collect(self) -> str | None:
        deployment, environment = self._some()
        more = ["--removed"] if self.chance.random() < 0.2 else []
        return self.launch(deployment, "gc", "gc", "--env", environment, *more)

    def trim(self) -> str | None:
        return self.launch(self._some()[0], "trim", "ledger", "trim", f"{TRIM_S}s")

    def back_up(self) -> str | None:
        file = str(self.world.base / f"backup-{self.n_jobs}.db")
        return self.launch(self._some()[0], "backup", "ledger", "backup", file)

    def publish(self) -> str | None:
        return self.launch(self._some()[0], "publish", "publish", "--env", "prod")

    def verify(self) -> str | None:
        deployment, environment = self._some()
        return self.launch(deployment, "verify", "verify", "--env", environment)

    def want(self) -> str | None:
        day = self.chance.randrange(1, 6)
        ref, deployment = f"shop/daily/2024-01-{day:02}", self.world.shop
        more: list[str] = []
        if self.chance.random() < 0.5:
            deployment = self.world.board
            ref = f"board/{self.chance.choice(('board', 'best', 'summary'))}"
            if self.chance.random() < 0.6:
                more = ["--needs", "shop:shop/report"]
        limits = ("--ttl", self.chance.choice(("20s", "2m")), "--sla", "10s")
        return self.launch(
            deployment, "want", "want", "add", ref, *limits, *more, "--no-wait", "--env", "prod"
        )

    def evaluate(self) -> str | None:
        return self.launch(
            self._some()[0], "evaluate", "evaluate", "--build", "--force", "--env", "prod"
        )

    def follow(self) -> str | None:
        deployment, environment = self._some()
        limits = ("--interval", "1s", "--until-idle", "3s", "--max-batches", "3")
        more = ("--max-failures", "2", "--env", environment)
        return self.launch(deployment, "follow", "follow", *limits, *more)

    def taint(self) -> str | None:
        names = ("shop/totals", "shop/daily/2024-01-02", "shop/visited")
        return self.launch(
            self.world.shop, "taint", "taint", self.chance.choice(names), "--env", "prod"
        )

    # ------------------------------------------------------------------------------ kills and faults

    def kill_service(self) -> str | None:
        deployment = self.chance.choice(self.world.deployments)
        if deployment.service is None or deployment.service.poll() is not None:
            return None
        deployment.service.kill()
        deployment.service.wait()
        self.world.kills["service"] += 1
        self.world.serve(deployment)
        return f"killed the service of {deployment.name}, and started it"

    def kill_spark(self) -> str | None:
        there = self.world.spark_processes()
        if not there:
            return None
        which = self.chance.choice(sorted(there))
        with suppress(ProcessLookupError):
            os.kill(there[which], signal.SIGKILL)
            self.world.kills[f"Spark {which}"] += 1
        return f"killed the {which} of Spark"

    def kill_backend(self) -> str | None:
        """Kill a process of PostgreSQL that serves a client: PostgreSQL then restarts itself."""
        backends = self.world.backends()
        if not backends:
            return None
        with suppress(ProcessLookupError):
            os.kill(self.chance.choice(backends), signal.SIGKILL)
            self.world.kills["PostgreSQL backend"] += 1
        return "killed a backend of PostgreSQL"

    def crash_postgres(self) -> str:
        """End PostgreSQL as a power cut or `stop -m immediate` does, and start it soon."""
        away_s, is_kill = self.chance.uniform(0, 6), self.chance.random() < 0.5
        self.world.crash_postgres(away_s, is_kill=is_kill)
        self.world.kills["PostgreSQL, killed" if is_kill else "PostgreSQL, stopped at once"] += 1
        return f"PostgreSQL was away for {away_s:.1f} s"

    def spoil_store(self) -> str:
        act = self.chance.choice(("throttle", "slow", "lose", "silence", "too-many", "denied"))
        method = self.chance.choice((".*", "PUT", "GET"))
        times = 200 if act == "slow" else self.chance.randrange(1, 12)
        self.world.proxy.misbehave(act, method, times=times)
        self.world.faults[f"store: {act}"] += 1
        return f"the store will {act} {times} times ({method})"
