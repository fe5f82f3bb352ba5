# Dispatches of records that follow each other, packed, and what queues and index keep of them.

cdef struct Entry:
    int64_t offset, queue_offset, stored
    Py_ssize_t text_at  # of the unique key in the texts; the keys follow
    int32_t size, queue_id, sys_flag, route, tag, unique_bytes, keys_bytes


cdef enum:
    QUEUES_AT_ONCE = 8


cdef inline Py_ssize_t size_of(Entry *e) noexcept nogil:
    """Of its texts."""
    return e.unique_bytes + e.keys_bytes


cdef class Route:
    """A topic, and the next offset of each of its queues as far as known."""

    cdef str topic
    cdef bytes stored  # as it stands in a record, its length first
    cdef Py_ssize_t queues
    cdef uint32_t hash_start  # of ``topic#``
    cdef int64_t *following
    cdef uint64_t *asked  # in which call ``following`` was asked for
    cdef uint64_t block  # the block it is in, and where
    cdef int32_t place

    def __cinit__(self, str topic, Py_ssize_t queues):
        cdef bytes name = topic.encode()
        self.following = <int64_t *>malloc(sizeof(int64_t) * max(queues, 1))
        self.asked = <uint64_t *>malloc(sizeof(uint64_t) * max(queues, 1))
        if self.following == NULL or self.asked == NULL:
            raise MemoryError
        memset(self.asked, 0, sizeof(uint64_t) * max(queues, 1))
        self.topic = topic
        self.queues = queues
        self.stored = bytes([len(name)]) + name
        self.hash_start = java_hash(0, <const uint8_t *>PyBytes_AS_STRING(name), len(name)) * 31 + 35
        self.block = 0

    def __dealloc__(self):
        free(self.following)
        free(self.asked)


cdef uint64_t _blocks = 0


cdef class Block:
    """A sequence of ``kind`` (store.files.record.Dispatch), of records in the order of the log."""

    cdef Entry *entries
    cdef Py_ssize_t n, cap
    cdef Bytes texts
    cdef list routes
    cdef object kind
    cdef uint64_t number
    cdef Py_ssize_t near  # what ``place_of`` found last

    def __cinit__(self, object kind):
        global _blocks
        self.cap = 16
        self.entries = <Entry *>malloc(sizeof(Entry) * self.cap)
        if self.entries == NULL:
            raise MemoryError
        self.n = self.near = 0
        self.texts = Bytes(1024)
        self.routes = []
        self.kind = kind
        _blocks += 1
        self.number = _blocks

    def __dealloc__(self):
        free(self.entries)

    cdef Entry *add(self, Route route, Str unique, Str keys) except NULL:
        """Room for one more, its route and texts filled in."""
        cdef Entry *entry
        cdef uint8_t *to
        if self.n == self.cap:
            entry = <Entry *>realloc(self.entries, sizeof(Entry) * self.cap * 2)
            if entry == NULL:
                raise MemoryError
            self.entries = entry
            self.cap *= 2
        if route.block != self.number:
            route.block = self.number
            route.place = <int32_t>len(self.routes)
            self.routes.append(route)
        to = self.texts.room(unique.n + keys.n)
        entry = self.entries + self.n
        entry.route = route.place
        entry.text_at = self.texts.n
        entry.unique_bytes = <int32_t>unique.n
        entry.keys_bytes = <int32_t>keys.n
        if unique.n:
            memcpy(to, unique.p, unique.n)
        if keys.n:
            memcpy(to + unique.n, keys.p, keys.n)
        self.texts.n += unique.n + keys.n
        self.n += 1
        return entry

    def __len__(self):
        return self.n

    def __getitem__(self, Py_ssize_t at):
        if at < 0:
            at += self.n
        if not 0 <= at < self.n:
            raise IndexError(at)
        cdef Entry *e = self.entries + at
        cdef bytes texts = PyBytes_FromStringAndSize(<char *>self.texts.p + e.text_at, size_of(e))
        return self.kind(
            e.offset, e.size, (<Route>self.routes[e.route]).topic, e.queue_id, e.queue_offset, e.tag,
            texts[:e.unique_bytes].decode(), texts[e.unique_bytes:].decode(), e.stored, e.sys_flag,
        )

    def items(self, Py_ssize_t first, Py_ssize_t until):
        """The dispatches in these places."""
        return [self[at] for at in range(first, until)]

    @property
    def begin(self):
        """Where its first record begins; -1: there is none."""
        return self.entries.offset if self.n else -1

    def place_of(self, int64_t offset):
        """The first place whose record ends behind ``offset``."""
        cdef Py_ssize_t at = self.near
        cdef Entry *e = self.entries
        while at > 0 and e[at - 1].offset + e[at - 1].size > offset:
            at -= 1
        while at < self.n and e[at].offset + e[at].size <= offset:
            at += 1
        self.near = at
        return at

    def end(self, Py_ssize_t until):
        """Where the record before place ``until`` ends, and its store time."""
        if not 0 < until <= self.n:
            raise IndexError(until)
        cdef Entry *e = self.entries + until - 1
        return e.offset + e.size, e.stored

    def advance(self, dict table):
        """Put (topic, queue id) -> the offset behind its newest into ``table``."""
        cdef Py_ssize_t at, seen = 0, other
        cdef Entry *e
        cdef Entry *newest[QUEUES_AT_ONCE]  # of the queues met last: most blocks are of few
        for at in range(self.n):
            e = self.entries + at
            for other in range(seen):
                if newest[other].queue_id == e.queue_id and newest[other].route == e.route:
                    newest[other] = e
                    break
            else:
                if seen == QUEUES_AT_ONCE:
                    self._advance_to(table, newest, seen)
                    seen = 0
                newest[seen] = e
                seen += 1
        self._advance_to(table, newest, seen)

    cdef int _advance_to(self, dict table, Entry **newest, Py_ssize_t count) except -1:
        cdef Py_ssize_t at
        cdef Entry *e
        for at in range(count):
            e = newest[at]
            table[(<Route>self.routes[e.route]).topic, e.queue_id] = e.queue_offset + 1
        return 0

    def enter(self, Py_ssize_t first, Py_ssize_t until, dict table, dict dirty, list arrived, Py_ssize_t full_bytes):
        """Enter these records in their ConsumeQueues, those of ``table`` by (topic, queue id), and these in
        ``dirty``. To ``arrived``, where it is not None, of each queue and tags code: (topic, queue id, the
        offset behind the last such record, the tags code).

        Queues that hold ``full_bytes`` or more that are not written. None when a queue is not there, or does not
        go on where it ends: then nothing has changed.
        """
        if not 0 <= first <= until <= self.n:
            raise IndexError(until)
        cdef Py_ssize_t count = until - first, at, groups = 0, slot, slots = 16, group, size
        while slots < 2 * count:
            slots *= 2
        cdef int32_t *memory = <int32_t *>malloc(sizeof(int32_t) * (slots + 4 * count))
        if memory == NULL:
            raise MemoryError
        cdef int32_t *places = memory  # a hash table of groups + 1
        cdef int32_t *heads = memory + slots  # of each group its first place ...
        cdef int32_t *lasts = heads + count  # ... its last one ...
        cdef int32_t *sizes = lasts + count  # ... and how many
        cdef int32_t *following = sizes + count  # of each place the next one of its group
        cdef Entry *entries = self.entries + first
        cdef Entry *e
        cdef Entry *head
        cdef uint8_t *to
        memset(places, 0, sizeof(int32_t) * slots)
        cdef list queues = [], full = []
        cdef bytearray buffer
        try:
            for at in range(count):
                e = entries + at
                slot = <Py_ssize_t>((<uint32_t>e.queue_id * 2654435761u) ^ (<uint32_t>e.route * 40503u)) & (slots - 1)
                while True:
                    group = places[slot] - 1
                    if group < 0:
                        queue = table.get(((<Route>self.routes[e.route]).topic, e.queue_id))
                        if queue is None or queue.max_offset != e.queue_offset or queue.max_physical > e.offset:
                            return None
                        queues.append(queue)
                        places[slot] = <int32_t>groups + 1
                        heads[groups] = lasts[groups] = <int32_t>at
                        sizes[groups] = 1
                        groups += 1
                        break
                    head = entries + heads[group]
                    if head.queue_id == e.queue_id and head.route == e.route:
                        if entries[lasts[group]].queue_offset + 1 != e.queue_offset:
                            return None
                        following[lasts[group]] = <int32_t>at
                        lasts[group] = <int32_t>at
                        sizes[group] += 1
                        break
                    slot = (slot + 1) & (slots - 1)
            for group in range(groups):
                queue = queues[group]
                buffer = queue.buffer
                size = PyByteArray_GET_SIZE(buffer)
                PyByteArray_Resize(buffer, size + ENTRY_BYTES * <Py_ssize_t>sizes[group])
                to = <uint8_t *>PyByteArray_AS_STRING(buffer) + size
                at = heads[group]
                while True:
                    e = entries + at
                    st64(to, <uint64_t>e.offset)
                    st32(to + 8, <uint32_t>e.size)
                    st64(to + 12, <uint64_t><int64_t>e.tag)
                    to += ENTRY_BYTES
                    if at == lasts[group]:
                        break
                    at = following[at]
                queue.max_offset = e.queue_offset + 1
                queue.max_physical = e.offset + e.size
                dirty[queue] = None
                if PyByteArray_GET_SIZE(buffer) >= full_bytes:
                    full.append(queue)
                if arrived is not None:
                    self._tell(entries, heads[group], lasts[group], following, arrived)
        finally:
            free(memory)
        return full

    cdef int _tell(self, Entry *entries, int32_t at, int32_t last, int32_t *following, list arrived) except -1:
        """What arrived in one queue, whose records are in these places."""
        cdef Entry *e = entries + at
        cdef str topic = (<Route>self.routes[e.route]).topic
        cdef dict tags = None
        while at != last:
            at = following[at]
            if entries[at].tag != e.tag:
                if tags is None:
                    tags = {}
                tags[e.tag] = e.queue_offset + 1
            e = entries + at
        if tags is None:
            arrived.append((topic, e.queue_id, e.queue_offset + 1, e.tag))
            return 0
        tags[e.tag] = e.queue_offset + 1
        for code, offset in tags.items():
            arrived.append((topic, e.queue_id, offset, code))
        return 0

    def index_entries(self, Py_ssize_t first, Py_ssize_t until, int64_t seen, int32_t[::1] table,
                      int64_t number, int64_t room, int64_t begin_ms, bytearray pages, int pages_shift):
        """What these records add to an index file whose next entry is ``number`` and that has ``room``: their
        keys, of those that begin behind ``seen``. ``table`` has its slots and is changed, ``pages`` a byte for
        each of their pages, 1 for one that changed; ``begin_ms``: its first message's store time, of one that has none (number 1) the
        first of these'.

        (entries, new slots, offset and store time of the first, of the last), b"" for none; None when it has
        no room for all of them: then nothing has changed.
        """
        if not 0 <= first <= until <= self.n:
            raise IndexError(until)
        cdef Py_ssize_t at, k, begin, total = 0, used = 0
        cdef Py_ssize_t slots = table.shape[0], slot
        if (slots - 1) >> pages_shift >= len(pages):
            raise IndexError(len(pages))
        cdef char *changed = PyByteArray_AS_STRING(pages)
        cdef Entry *e
        cdef Entry *head = NULL
        cdef Entry *last = NULL
        cdef const uint8_t *text
        cdef uint8_t *to
        cdef uint32_t start, h
        cdef uint64_t since
        cdef int64_t seconds
        cdef int32_t before
        for at in range(first, until):
            e = self.entries + at
            if e.offset <= seen:
                continue
            k = words_in(self.texts.p + e.text_at + e.unique_bytes, e.keys_bytes) + (e.unique_bytes > 0)
            if k:
                total += k
                last = e
                if head == NULL:
                    head = e
        if total > room:
            return None
        if total == 0:
            return b"", 0, 0, 0, 0, 0
        if number == 1:
            begin_ms = head.stored
        raw = PyBytes_FromStringAndSize(NULL, ENTRY_BYTES * total)
        to = <uint8_t *>PyBytes_AS_STRING(raw)
        for at in range(first, until):
            e = self.entries + at
            if e.offset <= seen:
                continue
            seconds = 0
            if e.stored > begin_ms:  # by up to 2**64: a log may say what it likes
                since = (<uint64_t>e.stored - <uint64_t>begin_ms) // 1000
                seconds = 0x7FFFFFFF if since > 0x7FFFFFFF else <int64_t>since
            start = (<Route>self.routes[e.route]).hash_start
            text = self.texts.p + e.text_at
            begin = 0
            k = e.unique_bytes
            while True:
                if k > begin:
                    h = index_hash(java_hash(start, text + begin, k - begin))
                    slot = <Py_ssize_t>(h % <uint32_t>slots)
                    before = table[slot]
                    st32(to, h)
                    st64(to + 4, <uint64_t>e.offset)
                    st32(to + 12, <uint32_t>seconds)
                    st32(to + 16, <uint32_t>before)
                    to += ENTRY_BYTES
                    table[slot] = <int32_t>number
                    number += 1
                    changed[slot >> pages_shift] = 1
                    if before == 0:
                        used += 1
                # The next word: the unique key is one, blanks part the others.
                begin = k
                while begin < size_of(e) and text[begin] == 32:
                    begin += 1
                if begin == size_of(e):
                    break
                k = begin
                while k < size_of(e) and text[k] != 32:
                    k += 1
        return raw, used, head.offset, head.stored, last.offset, last.stored


cdef Py_ssize_t words_in(const uint8_t *p, Py_ssize_t n) noexcept nogil:
    """How many words there are between blanks."""
    cdef Py_ssize_t k, count = 0
    for k in range(n):
        if p[k] != 32 and (k == 0 or p[k - 1] == 32):
            count += 1
    return count
