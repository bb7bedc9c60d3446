"""What is known about model servers, and chat requests that are changed so that they take them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from ..chat.adaptation.adaptation import Step
from ..chat.adaptation.enforced import Expectation, expected
from ..chat.adaptation.evidence import TRIALS, Evidence
from ..chat.adaptation.parts import named
from ..chat.adaptation.refusal import Refusal, RefusedError
from ..chat.adaptation.registry import (
    Attempt,
    Plan,
    asked_by,
    attempted,
    changes_of,
    in_order,
    is_hint,
    is_remembered,
    refusal_names,
    tell,
    walks_messages,
    withholds,
)
from ..chat.inference import Inference, ModelServer
from ..chat.profile import Profile
from ..concurrency.large_work import LargeWork
from ..concurrency.offloading import in_thread
from ..core.errors import ApiError
from ..core.lru_cache import LruCache
from ..core.types import Json
from ..logs import Outage, get_logger
from ..store.learned_adaptations import (
    CONTEXT_SECONDS,
    LEARNED_SECONDS,
    Judged,
    Learned,
    LearnedSteps,
)
from ..telemetry.instrumentation import Telemetry
from ..telemetry.metrics import Metric

logger = get_logger(__name__)

ADAPTATIONS: Final = Metric(
    "llama_stack_responses.model_server.adaptations",
    "{adaptation}",
    "Changes of chat requests that model servers refused",
)

_MAX_CHANGES: Final = 16
"""Maximum number of times that one chat request is changed after a refusal. Refusals of hints alone do not count: there
are only a few hints, and some servers name one at a time.
"""

_MAX_RETRIES: Final = 6
"""Maximum number of these refusals that name nothing that has not been changed already."""

_MAX_MODELS: Final = 1_000
"""Maximum number of models whose changes are at hand."""

_VALID_SECONDS: Final = 300.0
"""Seconds after which it is looked up again which server has a model, and what was learned about that server. A
correction is also stored at most once in this time."""

_NOTABLE: Final = 0.1
"""Part by which a correction has to differ from the stored one to be stored."""

_TRY_SECONDS: Final = 60.0
"""Seconds for which no other request tries a change anew that one tries."""

_UNKNOWN: Final = ModelServer("")


class Settled(Protocol):
    """Returns the changes that profiles have for a model of a model server."""

    def __call__(self, server: ModelServer, model: str) -> Sequence[Step]:
        """Return them, those of the operator after all others."""
        ...


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a model.

    Attributes:
        model: its name.
        server: its server.
        steps: the changes of all its chat requests, in order.
        evidence: what has been seen of other changes that may be needed.
        correction: the tokens that its server has reported for each estimated one, by what is stored.
        context: the tokens of its context that its server has named in a refusal; None if it has named none.
        until: when that has to be looked up again, by the store's clock.
        learned: what was learned about its server, of which this is a view.
    """

    model: str
    server: ModelServer
    steps: tuple[Step, ...]
    evidence: Mapping[Step, Evidence]
    correction: float
    context: int | None
    until: float
    learned: Learned


class ModelServers:
    """Changes chat requests as their model servers need it, and learns from refusals.

    What was learned is shared by all servers of a store. A process reads it when it first asks a model server, again
    when that refuses something, and from time to time.

    Args:
        inference: has the model servers.
        settled: returns what profiles say.
        settings: a digest of these profiles: what was learned with others is not used.
        learned: the store of what was learned; None to keep it in this process alone.
        large_work: changes long conversations.
        telemetry: counts the changes.
        clock: returns the time of the store's clock, in seconds since the epoch.
    """

    def __init__(
        self,
        inference: Inference,
        settled: Settled,
        settings: str,
        learned: LearnedSteps | None,
        large_work: LargeWork,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._inference, self._settled, self._settings = inference, settled, settings
        self._stored = learned
        self._large_work, self._telemetry, self._clock = large_work, telemetry, clock
        self._known: LruCache[str, Known] = LruCache(_MAX_MODELS)
        self._learned: dict[str, Learned] = {}
        self._read_again: dict[str, float] = {}  # by server: when, by the store's clock
        self._corrections: LruCache[str, float] = LruCache(_MAX_MODELS)
        self._store_again: LruCache[str, float] = LruCache(_MAX_MODELS)  # corrections: when, by the store's clock
        self._tries: LruCache[tuple[str, Step], float] = LruCache(_MAX_MODELS)  # until when, by the store's clock
        self._taken: LruCache[str, int] = LruCache(_MAX_MODELS)
        self._named: LruCache[str, int] = LruCache(_MAX_MODELS)  # contexts that one refusal has named
        self._outage = Outage()
        self._tasks = set[asyncio.Task[None]]()

    async def prepare(self, chat: Json, own: OwnChanges | None = None) -> AdaptedRequest:
        """Return a chat request as its model server is known to take it.

        Args:
            chat: the request.
            own: the changes that the requests of its response have needed; None if it has no other ones.
        """
        known = await self._known_of(chat["model"])
        request = AdaptedRequest(self, known, chat, own or OwnChanges())
        await request.begin()
        return request

    async def steps_of(self, model: str) -> Sequence[Step]:
        """Return the changes that all chat requests to a model get: of profiles, and learned."""
        return (await self._known_of(model)).steps

    async def correction(self, model: str) -> float:
        """Return the tokens that a model's server has last reported for each estimated one; at least 1."""
        return self._corrections.get(model) or (await self._known_of(model)).correction

    def correct(self, model: str, reported: float) -> None:
        """Keep the tokens that a model's server has reported for each estimated one.

        Less than one is no reason to send more: some servers do not count what they cached.
        """
        correction, now = max(1.0, reported), self._clock()
        self._corrections.set(model, correction)
        known = self._at_hand(model)
        if known is None or abs(correction / known.correction - 1) < _NOTABLE:
            return
        if self._stored and (self._store_again.get(model) or 0.0) <= now:
            self._store_again.set(model, now + _VALID_SECONDS)
            name = self._name_of(known.server)
            self._learned[name] = known.learned.with_correction(model, correction, now + LEARNED_SECONDS)
            self._begin(self._stored.correct(name, known.server.provider, model, correction))

    def took(self, model: str, tokens: int) -> None:
        """Note that a model's server has taken a request of so many tokens, which its context therefore has."""
        if tokens > (self._taken.get(model) or 0):
            self._taken.set(model, tokens)
        known = self._at_hand(model)
        if known and known.context and tokens > known.context:
            self._set_context(known.server, model, None)

    async def context_length(self, model: str, profile: Profile) -> int | None:
        """Return the tokens of a model's context: those that its server has named in a refusal, those of the profile,
        or those that the host knows; None if they are unknown.
        """
        named = (await self._known_of(model)).context
        return named or profile.context_length or await self._inference.context_length(model)

    async def learn_context_length(self, model: str, length: int, *, agrees: bool) -> None:
        """Keep the tokens of a model's context that its server has named in a refusal.

        A number may be one of something else, so a second refusal has to name it too.

        Args:
            model: the model.
            length: the tokens.
            agrees: whether the refusal also names the tokens of the request, and they are about as many as estimated.
        """
        known = await self._known_of(model)
        if known.context == length or length < (self._taken.get(model) or 0):
            return
        if agrees or self._named.get(model) == length:
            self._set_context(known.server, model, length)
        self._named.set(model, length)

    def _set_context(self, server: ModelServer, model: str, length: int | None) -> None:
        """Keep the length of a model's context; None to forget it."""
        name = self._name_of(server)
        self._learned[name] = self._learned[name].with_context(model, length, self._clock() + CONTEXT_SECONDS)
        if self._stored:
            self._begin(self._stored.bound(name, server.provider, model, length))

    async def _known_of(self, model: str) -> Known:
        known = self._at_hand(model)
        if known is None or known.until < self._clock():
            known = await self._look_up(model)
        return known

    def _at_hand(self, model: str) -> Known | None:
        """Return what is known of a model without a look-up; None if that needs one."""
        known = self._known.get(model)
        if known and known.learned is not self._learned[self._name_of(known.server)]:
            known = self._note(known.server, model)
        return known

    async def _look_up(self, model: str) -> Known:
        server = await self._inference.server_of(model) or _UNKNOWN
        name, now = self._name_of(server), self._clock()
        if name not in self._learned or self._read_again[name] < now:
            if name in self._learned:
                self._read_again[name] = now + _VALID_SECONDS  # Other requests use what is at hand meanwhile.
            await self._read(server)
        return self._note(server, model)

    def _note(self, server: ModelServer, model: str) -> Known:
        """Put together what is known of a model."""
        now = self._clock()
        learned = self._learned[self._name_of(server)]
        valid = {step: until for step, until in learned.steps.get(model, {}).items() if until > now}
        correction, until_correction = learned.corrections.get(model, (1.0, now + _VALID_SECONDS))
        if until_correction <= now:
            correction, until_correction = 1.0, now + _VALID_SECONDS
        context, until_context = learned.contexts.get(model, (None, now + _VALID_SECONDS))
        if until_context <= now:
            context, until_context = None, now + _VALID_SECONDS
        until = min([now + _VALID_SECONDS, until_correction, until_context, *valid.values()])
        steps = in_order([*self._settled(server, model), *valid])
        seen = {step: each.valid(now) for step, each in learned.evidence.get(model, {}).items()}
        evidence = {step: each for step, each in seen.items() if each.cases}
        known = Known(model, server, steps, evidence, correction, context, until, learned)
        self._known.set(model, known)
        return known

    def settled(self, server: ModelServer, model: str) -> tuple[Step, ...]:
        """Return the changes that profiles have for a model, in order."""
        return in_order(self._settled(server, model))

    async def learned_meanwhile(self, server: ModelServer, model: str) -> Known:
        """Return what is known of a model, with what other servers of the store have learned."""
        await self._read(server)
        return self._note(server, model)

    def learn(self, server: ModelServer, model: str, steps: Sequence[Step], refused: Sequence[Step] = ()) -> None:
        """Keep changes with which a model server has accepted a chat request that it had refused.

        Args:
            server: the model server.
            model: the model.
            steps: the changes.
            refused: earlier changes that it does not take any more, which are forgotten.
        """
        logger.warning(
            "the model server of model '%s' refused a request and took it after these changes, which it gets for a "
            "day: %s; a profile makes them permanent (docs/guides/model-servers.md)%s",
            model,
            ", ".join(map(str, steps)) or "none",
            f"; it does not get these any more: {', '.join(map(str, refused))}" if refused else "",
        )
        name, until = self._name_of(server), self._clock() + LEARNED_SECONDS
        self._learned[name] = self._learned[name].with_changes(model, steps, until, refused)
        if self._stored:
            self._begin(self._stored.add(name, server.provider, model, steps, refused))

    def judge(
        self, server: ModelServer, model: str, attempt: Attempt, needed: Sequence[Step], left: Sequence[Step]
    ) -> None:
        """Note what a model server has taken and what not.

        Args:
            server: the model server.
            model: the model.
            attempt: the request.
            needed: the changes without which the server refused it, and with which it took it.
            left: the changes without which it took it.
        """
        name, now = self._name_of(server), self._clock()
        known = self._learned[name].evidence.get(model, {})
        judged: dict[Step, Judged] = {
            step: partial(Evidence.refused, parts=attempt.parts, now=now, values=attempt.values[step])
            for step in needed
        }
        judged |= {step: partial(Evidence.accepted, parts=attempt.taken, now=now) for step in left}
        for step in needed:
            self._tries.set((model, step), now)  # One with another value may try it at once.
        judged = {
            step: judge for step, judge in judged.items() if judge(before := known.get(step, Evidence())) != before
        }
        if not judged:
            return
        self._learned[name] = self._learned[name].with_judged(model, judged)
        self._log(model, known, self._learned[name].evidence.get(model, {}), judged)
        if self._stored:
            self._begin(self._stored.judge(name, server.provider, model, judged))

    @staticmethod
    def _log(
        model: str, before: Mapping[Step, Evidence], after: Mapping[Step, Evidence], judged: Mapping[Step, Judged]
    ) -> None:
        """Log the changes that other requests get from now on, and those that they do not get any more."""
        for step in judged:
            old, new = (known.get(step, Evidence()) for known in (before, after))
            if new.is_confirmed and new.cases[-1] not in old.cases:
                logger.warning(
                    "the model server of model '%s' refused several requests and took them after a change, which "
                    "requests with the same parts get until one is sent without it again: %s, for requests with %s; a "
                    "profile makes it permanent (docs/guides/model-servers.md)",
                    model,
                    step,
                    ", ".join(named(new.cases[-1].parts)) or "anything",
                )
            elif old.is_confirmed and not new.is_confirmed:
                logger.warning(
                    "the model server of model '%s' takes requests that it had refused; they are not changed any "
                    "more: %s",
                    model,
                    step,
                )

    def _begin(self, storing: Coroutine[Any, Any, None]) -> None:
        """Store something in the background."""
        task = asyncio.create_task(self._store(storing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store(self, storing: Coroutine[Any, Any, None]) -> None:
        try:
            await storing
        except ApiError as error:
            if self._outage.should_log(error):
                logger.warning("could not store what was learned about a model server: %s", error)

    def count(self, server: ModelServer, steps: Sequence[Step]) -> None:
        """Count changes after a refusal."""
        for step in steps:
            labels = {"gen_ai.provider.name": server.provider, "llama_stack_responses.adaptation": step.kind}
            self._telemetry.record(ADAPTATIONS, labels=labels)

    async def attempt(
        self, chat: Json, steps: Sequence[Step], noted: Sequence[Step], known: Known, *, may_try: bool
    ) -> Attempt:
        """Return the changed chat request.

        Args:
            chat: the request.
            steps: the changes that are made.
            noted: those of them that its response alone has needed.
            known: what is known of the model.
            may_try: whether a change that was learned may be left out, if it is time to see whether it is still needed.
        """
        if not steps and not known.evidence:
            return Attempt(chat)
        now, model = self._clock(), known.model
        triable = [step for step in known.evidence if may_try and (self._tries.get((model, step)) or 0.0) <= now]
        work = partial(attempted, chat, Plan(steps, noted, known.evidence, now, triable))
        walks = known.evidence or noted or walks_messages(steps)
        attempt = await self._large_work.run(work, chat) if walks else work()
        if attempt.tried:
            self._tries.set((model, attempt.tried), now + _TRY_SECONDS)
        return attempt

    def put_off(self, model: str, step: Step) -> None:
        """Have no request try a change anew for a while: one that did has failed, and it is not known of what."""
        self._tries.set((model, step), self._clock() + TRIALS[1])

    async def asked(self, refusal: Refusal, chat: Json, tried: Sequence[Step]) -> list[Step]:
        """Return the changes that a refusal of a chat request asks for, which was made with those that were tried.

        In a thread: a server's text is searched for many things, and a conversation may be long.
        """
        return await in_thread(asked_by, refusal, chat, tried)

    async def _read(self, server: ModelServer) -> None:
        """Read what was learned about a server; keep what is at hand if the store does not answer."""
        name = self._name_of(server)
        learned = self._learned.get(name, Learned())
        if self._stored:
            try:
                learned = await self._stored.of(name)
                self._outage.over()
            except ApiError as error:
                if self._outage.should_log(error):
                    logger.warning("could not read what was learned about a model server: %s", error)
                learned = self._learned.get(name, learned)
        self._learned[name], self._read_again[name] = learned, self._clock() + _VALID_SECONDS

    def _name_of(self, server: ModelServer) -> str:
        return f"{server.provider}\n{server.version}\n{self._settings}"


@dataclass(slots=True)
class OwnChanges:
    """The changes that the requests of one response have needed, which its later requests get at once.

    Attributes:
        steps: the changes. Each counts once, however many requests the response has.
    """

    steps: tuple[Step, ...] = ()


class AdaptedRequest:
    """A chat request, changed as its model server needs it.

    Args:
        servers: knows the model servers, and learns.
        known: what is known of the model.
        chat: the request without changes.
        own: the changes that the requests of its response have needed.

    Attributes:
        chat: the request to send; None once the answer has begun and cannot be asked for again.
        applied: the changes that it has.
        expectation: what the answer must have, which is checked here; None for nothing.
    """

    __slots__ = (
        "_asked",
        "_attempt",
        "_begun_with",
        "_changes",
        "_known",
        "_own",
        "_refused",
        "_repairs",
        "_retries",
        "_servers",
        "_tries",
        "_unchanged",
        "applied",
        "chat",
        "expectation",
    )

    def __init__(self, servers: ModelServers, known: Known, chat: Json, own: OwnChanges) -> None:
        self._servers, self._known, self._own = servers, known, own
        self._unchanged: Json | None = chat
        self._attempt = Attempt(chat)
        self._asked: tuple[Step, ...] = ()  # for by refusals of this request
        self._begun_with: tuple[Step, ...] = ()  # changes of the first attempt: it is not judged anew what is needed
        self._refused: tuple[Step, ...] = ()  # learned changes that the server does not take any more
        self._tries = self._changes = self._retries = self._repairs = 0
        self.chat: Json | None = chat
        self.applied: tuple[Step, ...] = ()
        self.expectation: Expectation | None = None

    @property
    def provider(self) -> str:
        """The provider of the model server; empty if it is unknown."""
        return self._known.server.provider

    @property
    def _new(self) -> tuple[Step, ...]:
        """The changes that refusals of this request have asked for and that can be learned."""
        return tuple(filter(is_remembered, self._asked))

    async def begin(self) -> None:
        """Change the request as the model server is known to need it."""
        await self._use(self._known, may_try=True)
        self._begun_with = self.applied

    async def _use(self, known: Known, *, may_try: bool = False) -> None:
        """Change the request anew."""
        assert self._unchanged is not None
        self._known = known
        noted = (*self._own.steps, *self._asked)
        steps = in_order([*known.steps, *noted, *self._begun_with])
        self._attempt = await self._servers.attempt(self._unchanged, steps, noted, known, may_try=may_try)
        self.chat, self.applied = self._attempt.chat, self._attempt.applied
        self.expectation = expected(self._unchanged, self.applied)

    async def recover(self, error: ApiError) -> bool:
        """Change the request after an error that came before an answer; return False if there is nothing to change.

        A request that was to show whether a change is still needed gets it after any error.
        """
        if isinstance(error, RefusedError):
            return await self.adapt(error.refusal)
        if self.chat is None or not (tried := self._attempt.tried):
            return False
        self._put_off(tried)
        await self._use(self._known)
        return True

    def _put_off(self, tried: Step) -> None:
        """Make a change after all that was left out to try it."""
        self._servers.put_off(self._known.model, tried)
        self._begun_with += (tried,)

    async def adapt(self, refusal: Refusal) -> bool:
        """Change the request after it was refused; return False if there is nothing to change."""
        if self.chat is None:
            return False
        sent, before, tried = self.chat, self.applied, self._attempt.tried
        made = in_order([*self._known.steps, *self._own.steps, *self._asked, *before])
        asked = await self._servers.asked(refusal, sent, made)
        if tried and tried not in asked:
            self._put_off(tried)
        known = self._known
        if not self._tries:
            known = await self._servers.learned_meanwhile(known.server, known.model)
        new = tuple(step for step in asked if step not in made and step not in known.steps)
        self._tries += 1
        if not self._may_go_on(new):
            self._learn_unfinished(asked)
            return False
        self._asked += new
        await self._use(known)
        self._servers.count(known.server, new)
        return self.applied != before or await self._forget(refusal, sent)

    def _may_go_on(self, new: Sequence[Step]) -> bool:
        """Return whether the request may be changed once more, by these changes."""
        if new and all(map(is_hint, new)):
            return True
        changed = set(map(changes_of, self._asked))
        self._changes += 1
        self._retries += all(changes_of(step) in changed for step in new)
        return self._changes <= _MAX_CHANGES and self._retries <= _MAX_RETRIES

    async def _forget(self, refusal: Refusal, sent: Json) -> bool:
        """Adapt the request anew, without what was learned, if a refusal is about that; return whether it has changed.

        Args:
            refusal: the refusal against which no further change helps.
            sent: the request that was refused.
        """
        known, before = self._known, self.applied
        settled = self._servers.settled(known.server, known.model)
        learned = tuple(step for step in before if step not in settled and step not in self._new)
        if self._refused or not learned:
            return False
        named = not refusal.says_bound and any(refusal_names(refusal, step) for step in learned)
        if not named and not await self._servers.asked(refusal, sent, ()):
            return False
        self._refused, self._asked, self._own.steps, self._begun_with = learned, (), (), ()
        await self._use(replace(known, steps=settled, evidence={}))
        return self.applied != before

    def _learn_unfinished(self, asked: Sequence[Step]) -> None:
        """Learn the changes of a request that was changed often enough, if its server goes on to refuse something else.

        The next request begins with them.
        """
        if self._new and asked:
            self._learn(self._new, taken=False)

    def begun(self) -> None:
        """Learn the changes with which the model server has begun to answer, and forget those that it refused.

        The request is dropped, unless its answer is checked.
        """
        if self.chat is None:
            return
        if self.expectation is None:
            self.chat = self._unchanged = None
        new = tuple(step for step in self._new if step in self.applied)
        refused, self._refused = tuple(step for step in self._refused if step not in new), ()
        self._learn(new, refused)
        self._own.steps += tuple(step for step in self._asked if step in self.applied)
        self._asked, self._attempt = (), Attempt({})

    def _learn(self, new: Sequence[Step], refused: Sequence[Step] = (), *, taken: bool = True) -> None:
        server, model, attempt = self._known.server, self._known.model, self._attempt
        at_once = [step for step in new if not withholds(step)]
        if at_once or refused:
            self._servers.learn(server, model, at_once, refused)
        needed = [step for step in new if withholds(step) and step in attempt.values]
        left = attempt.left if taken else ()
        if needed or left:
            self._servers.judge(server, model, attempt, needed, left)

    def repair(self, text: str, problem: str) -> bool:
        """Ask for another answer than `text`, which has a problem; return False if that was done often enough."""
        if self.chat is None or self.expectation is None or self._repairs >= self.expectation.repairs:
            return False
        self._repairs += 1
        messages = [*self.chat["messages"], *self.expectation.repair(text, problem)]
        self.chat = self.chat | {"messages": messages}
        return True

    def tell(self, response: Json) -> None:
        """Correct the fields of the response, so that they say how the model server was asked."""
        tell(response, self.applied)


def digest(settings: str) -> str:
    """Return a digest of settings."""
    return hashlib.sha256(settings.encode()).hexdigest()[:16]
