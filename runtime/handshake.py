"""In which order do two ends that share a secret show each other that they have it?

    initiator -> responder   hello               a nonce, and who it is
    responder -> initiator   head, proof         its own nonce; it proves itself first, so nobody can collect
    initiator -> responder   proof               an initiator's proofs beforehand

A proof is a MAC under the secret of the prover's label and of all that was said before it: hello, head, and a
context both ends know without saying it. So it is good for one connection and one direction only.

Pure: bytes in, bytes out. What hello and head look like, and who is believed, is the affair of the protocol:
``controller.links.transport`` between Controllers, ``ha.wire.proof`` on the HA port.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from model.errors import PeerError
from runtime.mac import MAC_BYTES, is_mac, mac


class State(enum.Enum):
    """Of one end. It goes down this list, and skips what the other role waits for."""

    HELLO = "responder: waits for a hello"
    ANSWER = "initiator: said hello, waits for the responder's proof"
    PROOF = "responder: proved itself, waits for the initiator's proof"
    OPEN = "both have proven themselves"


class NotProven(PeerError):
    """The other end did not prove that it knows the secret."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What both ends have: the secret, the label of each one's proofs, and what is known unsaid.

    ``also``: secrets a responder may prove itself with instead. The initiator answers with the same one.
    """

    secret: bytes
    initiator: bytes
    responder: bytes
    context: bytes = b""
    also: tuple[bytes, ...] = ()


class _End:
    """One end of a handshake. ``kept``: what came and is not whole yet. ``secret``: what this end proves
    itself with, and what the other did once it is open."""

    def __init__(self, keys: Keys, state: State, said: bytes) -> None:
        self.state = state
        self.kept = b""
        self.said = said
        self.secret = keys.secret
        self._keys = keys

    def proof(self, label: bytes) -> bytes:
        """A MAC of all that was said so far; session keys are made the same way, with labels of their own."""
        return mac(self.secret, label, self._keys.context + self.said)

    def _need_proof(self, given: bytes, label: bytes, *others: bytes) -> None:
        """``others``: secrets that are as good as this end's own."""
        said = self._keys.context + self.said
        for secret in (self.secret, *others):
            if is_mac(given, secret, label, said):
                self.secret, self.state = secret, State.OPEN
                return
        raise NotProven("it does not prove that it knows the secret")


class Initiator(_End):
    """The end that says ``hello`` first."""

    def __init__(self, keys: Keys, hello: bytes, head_bytes: int) -> None:
        super().__init__(keys, State.ANSWER, hello)
        self._head_bytes = head_bytes

    def feed(self, data: bytes) -> bytes | None:
        """Take what came: the responder's head once it has proven itself, None before. Raises NotProven.

        It is the initiator's turn then: bytes behind the proof are nobody's.
        """
        assert self.state is State.ANSWER, self.state.value
        self.kept += data
        size = self._head_bytes + MAC_BYTES
        if len(self.kept) > size:
            raise NotProven("it says more than who it is")
        if len(self.kept) < size:
            return None
        head, given = self.kept[: self._head_bytes], self.kept[self._head_bytes :]
        self.said += head
        self._need_proof(given, self._keys.responder, *self._keys.also)
        self.kept = b""
        return head

    def own_proof(self) -> bytes:
        """What to say to the responder, which has proven itself."""
        assert self.state is State.OPEN, self.state.value
        return self.proof(self._keys.initiator)


class Responder(_End):
    """The end that waits for a hello. Who reads it calls ``answer``; ``kept`` is what there is of it."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys, State.HELLO, b"")

    def answer(self, hello: bytes, head: bytes) -> bytes:
        """What to say to a hello that is whole."""
        assert self.state is State.HELLO, self.state.value
        self.said, self.kept, self.state = hello + head, b"", State.PROOF
        return head + self.proof(self._keys.responder)

    def feed(self, data: bytes) -> bytes | None:
        """Take what came after the answer: what follows the initiator's proof, None while that is not whole.
        Raises NotProven."""
        assert self.state is State.PROOF, self.state.value
        self.kept += data
        if len(self.kept) < MAC_BYTES:
            return None
        given, rest = self.kept[:MAC_BYTES], self.kept[MAC_BYTES:]
        self._need_proof(given, self._keys.initiator)
        self.kept = b""
        return rest
