# Whole frames of a read -> records, answers and a block.

cdef enum:
    DONE = 0
    ROLL = 1  # the record of the frame at hand does not fit any more
    BROKEN = 2  # lengths that cannot be true
    INNER_MAX = 2048


cdef struct Taken:
    Py_ssize_t at  # where the rest begins
    int state  # DONE, ROLL or BROKEN
    bint ordered  # a send was left, so all others are
    int64_t total  # bytes the frame at hand would add


cdef class Turn:
    """What holds for the reads of an open turn."""

    cdef list reads
    cdef object go_on
    cdef int64_t begin, now_ms, limit
    cdef Py_ssize_t body_max, batch_max, frame_max, read_max, records_max

    def __init__(self, list reads, int64_t begin, int64_t now_ms, int64_t limit, tuple maxima, tuple most, go_on):
        self.reads, self.go_on = reads, go_on
        self.begin, self.now_ms, self.limit = begin, now_ms, limit
        self.body_max, self.batch_max, self.frame_max = maxima
        self.read_max, self.records_max = most


cdef class Sends:
    """Takes the plain sends of reads, until ``take`` hands over what is to be appended in one write.

    Holds: what was taken since ``take`` is one run of records, which begins at the log's end; ``answers`` are
    those to sends taken since it was asked last.
    """

    cdef Bytes records, reply, scratch
    cdef Block block
    cdef object kind, make_route, offsets
    cdef dict routes
    cdef Names names
    cdef bytes host, host_hex, extra
    cdef list json, binary
    cdef uint64_t call
    cdef int64_t plain_flags
    cdef Py_ssize_t properties_max, header_max
    cdef Turn turn
    cdef str born_key, waits_key, pulls_key
    cdef public object last
    """The connection whose read came last."""
    cdef public object otherwise
    """What ``join`` makes of a read that may not join."""

    def __init__(self, kind, make_route, offsets, bytes host, bytes extra, list names, list json, list binary,
                 int64_t plain_flags, Py_ssize_t properties_max, Py_ssize_t header_max, tuple keys):
        """``make_route(name)``: (topic, queues) of a topic sends may be plain for, or None.
        ``offsets.table``: (topic, queue id) -> offset of the queue's next message, where that is not 0. ``json`` and ``binary``: what stands
        around the values of an answer (broker.requests.send_format). ``keys``: of a connection's attributes, the
        bytes of its host, whether its sends wait for each other, and whether pulls come on it."""
        if len(host) != HOST_BYTES or len(json) != 6 or len(binary) != 6 or len(<bytes>binary[0]) != BINARY_BYTES:
            raise ValueError("these are not the parts of an answer")
        self.records = Bytes()
        self.reply = Bytes()
        self.scratch = Bytes()
        self.kind = kind
        self.make_route = make_route
        self.offsets = offsets
        self.routes = {}
        self.names = Names(names)
        self.host = host
        self.host_hex = host.hex().upper().encode()
        self.extra = extra
        self.json = [<bytes>part for part in json]
        self.binary = [<bytes>part for part in binary]
        self.call = 0
        self.plain_flags = plain_flags
        self.properties_max = properties_max
        self.header_max = header_max
        self.born_key, self.waits_key, self.pulls_key = keys

    def forget_routes(self):
        self.routes = {}

    @property
    def pending(self):
        """Bytes of records taken."""
        return self.records.n

    def open(self, list reads, int64_t begin, int64_t now_ms, int64_t limit, tuple maxima, tuple most, go_on):
        """A turn began where the log ends, at ``begin``: ``join`` adds short reads to ``reads`` until ``take`` or
        ``drop``. Whether the log still ends there is for others to ask before they store anything. ``now_ms``,
        ``limit``, ``maxima``: of ``process``; ``most``: bytes of such a read, and of the turn's records.
        ``go_on(connection, buffer, start, end, found, left)``: see ``join``; ``found`` is None after an exception."""
        self.turn = Turn(reads, begin, now_ms, limit, maxima, most, go_on)

    def join(self, connection, object buffer, Py_ssize_t start, Py_ssize_t end):
        """``process`` of a short read for the turn that is open. None once all of it is added to ``reads``, as
        (connection, its frames, their answers); (where the rest begins, []) when the last frame is not whole.
        When it brought more than plain sends, or ends the turn: what ``go_on`` makes of what ``process`` ``found``
        and ``left``. When no turn is open for it, nothing was looked at: what ``otherwise`` makes of it."""
        cdef Turn turn = self.turn
        cdef Py_buffer view
        cdef Taken taken
        cdef list left = []
        cdef dict attributes
        if turn is None or end - start > turn.read_max or self.records.n >= turn.records_max:
            return self.otherwise(connection, buffer, start, end)
        attributes = connection.attributes
        born = attributes.get(self.born_key)
        if (type(born) is not bytes or len(<bytes>born) != HOST_BYTES or self.waits_key in attributes
                or self.pulls_key in attributes):
            return self.otherwise(connection, buffer, start, end)
        self.last = connection
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len:
                raise IndexError(end)
            taken.at, taken.ordered = start, False
            self._process(
                &taken, <const uint8_t *>view.buf, end, <const uint8_t *>PyBytes_AS_STRING(born), turn.now_ms,
                turn.begin, turn.limit, turn.body_max, turn.batch_max, turn.frame_max, False, left,
            )
            if taken.state == DONE and not left and self.records.n < turn.records_max:
                if taken.at > start:
                    frames = PyBytes_FromStringAndSize(<char *>view.buf + start, taken.at - start)
                    turn.reads.append((connection, frames, self.answers()))
                return None if taken.at == end else (taken.at, left)
        except BaseException:
            turn.go_on(connection, buffer, start, end, None, left)
            raise
        finally:
            self.scratch.clear()
            PyBuffer_Release(&view)
        found = taken.at, taken.state, taken.ordered, taken.total
        return turn.go_on(connection, buffer, start, end, found, left)

    def take(self):
        """The records taken, as bytes and as a block; there are none afterwards."""
        cdef Block block = self.block
        self.turn = None
        self.block = None
        return self.records.taken(), block

    def answers(self):
        """Answers to what was taken since the last call, b"" for none."""
        return self.reply.taken() if self.reply.n else b""

    def drop(self):
        """Forget what was taken."""
        self.turn = None
        self.block = None
        self.records.clear()
        self.reply.clear()

    @property
    def buffer_bytes(self):
        """What its buffers take, full or empty."""
        return self.records.cap + self.reply.cap + self.scratch.cap

    def process(self, object buffer, Py_ssize_t start, Py_ssize_t end, bytes born, int64_t now_ms, int64_t log_end,
                int64_t limit, tuple maxima, bint ordered, bint leave_first, list left):
        """Take the plain sends among the whole frames in ``buffer[start:end]``, copies of the others to ``left``.

        ``log_end`` is the log's end, ``limit`` where its segment has no more room; ``maxima``: bytes of a body,
        messages of a batch, bytes of a frame. ``ordered``: a send was left, so all others are;
        ``leave_first``: the first frame is left whatever it is.

        (where the rest begins, DONE or ROLL or BROKEN, ordered, bytes the frame at hand would add)
        """
        cdef Py_buffer view
        cdef Taken taken
        cdef Py_ssize_t body_max = maxima[0], batch_max = maxima[1], frame_max = maxima[2]
        if len(born) != HOST_BYTES:
            raise ValueError("the host has %d bytes" % len(born))
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len:
                raise IndexError(end)
            taken.at, taken.ordered = start, ordered
            self._process(
                &taken, <const uint8_t *>view.buf, end, <const uint8_t *>PyBytes_AS_STRING(born), now_ms, log_end,
                limit, body_max, batch_max, frame_max, leave_first, left,
            )
            return taken.at, taken.state, taken.ordered, taken.total
        finally:
            self.scratch.clear()
            PyBuffer_Release(&view)

    cdef int _process(self, Taken *taken, const uint8_t *base, Py_ssize_t end, const uint8_t *born, int64_t now_ms,
                      int64_t log_end, int64_t limit, Py_ssize_t body_max, Py_ssize_t batch_max,
                      Py_ssize_t frame_max, bint leave, list left) except -1:
        """``process`` from ``taken.at`` on; what is found goes there."""
        cdef const uint8_t *frame
        cdef const uint8_t *body
        cdef int64_t length, total = 0, offset
        cdef uint32_t mark, header
        cdef Py_ssize_t stop, size, count
        cdef int kind
        cdef Head head
        cdef Props props
        cdef Route route = None
        cdef Py_ssize_t at = taken.at
        taken.state, taken.total = DONE, 0
        while end - at >= 8:
            frame = base + at
            length = <int32_t>ld32(frame)
            mark = ld32(frame + 4)
            header = mark & 0xFFFFFF
            if length < 4 or length + 4 > frame_max or mark >> 24 > 1 or header > length - 4 or header > self.header_max:
                taken.state = BROKEN
                break
            if 4 + length > end - at:
                break
            stop = at + 4 + <Py_ssize_t>length
            clear(&head)
            if leave:
                kind = ODD
            elif mark >> 24:
                kind = binary_head(frame + 8, header, &head, self.names)
            else:
                kind = json_head(frame + 8, header, &head, self.names, self.scratch.room(header))
            leave = False
            body = frame + 8 + header
            size = stop - at - 8 - <Py_ssize_t>header
            count = 0
            if kind == PLAIN and not taken.ordered:
                route = self._route(head.text[TOPIC], route)
                count = self._count(&head, &props, route, body, size, body_max, batch_max, &total)
            if count == 0:
                left.append(PyBytes_FromStringAndSize(<char *>frame, stop - at))
                taken.ordered = taken.ordered or kind != OTHER
                at = stop
                continue
            offset = log_end + self.records.n
            if offset + total > limit:
                taken.state, taken.total = ROLL, total
                break
            self._take(&head, &props, route, body, size, count, offset, born, now_ms, mark >> 24 != 0)
            at = stop
        taken.at = at
        return 0

    cdef Route _route(self, Str name, Route before):
        """The route of a topic; None: sends to it are not plain. ``before``: of the frame before."""
        if (before is not None and len(before.stored) == name.n + 1
                and memcmp(PyBytes_AS_STRING(before.stored) + 1, name.p, name.n) == 0):
            return before
        raw = PyBytes_FromStringAndSize(<char *>name.p, name.n)
        found = self.routes.get(raw)
        if found is None:
            made = self.make_route(raw.decode())
            if made is None:
                return None
            found = self.routes[raw] = Route(made[0], made[1])
        return <Route>found

    cdef Py_ssize_t _count(self, Head *h, Props *props, Route route, const uint8_t *body, Py_ssize_t size,
                           Py_ssize_t body_max, Py_ssize_t batch_max, int64_t *total):
        """How many messages a plain send has, and what their records take; 0: it is not plain."""
        cdef Str text = h.text[PROPERTIES]
        cdef bint batch = h.code == SEND_BATCH
        if (route is None or h.flag & 1 or (h.have & MANDATORY) != MANDATORY
                or h.text[GROUP].n == 0 or h.text[DEFAULT_TOPIC].n == 0
                or not 0 <= h.value[QUEUE_ID] < route.queues or h.value[SYS_FLAG] & ~self.plain_flags
                or size > body_max or not 0 < text.n <= self.properties_max
                or text.p[text.n - 1] != 2 or memchr(text.p, 0, text.n) != NULL
                or is_special(text.p, text.n)):
            return 0
        if batch:
            if not same(h.text[BATCH], b"true", 4):
                return 0
        elif h.text[BATCH].n and not same(h.text[BATCH], b"false", 5):
            return 0
        scan(text.p, text.n, props)
        if not is_alphanumeric(props.unique):
            return 0
        if batch:
            return inner_count(body, size, batch_max, OVERHEAD_BYTES + <Py_ssize_t>len(route.stored), total)
        if text.n + <Py_ssize_t>len(self.extra) > self.properties_max:
            return 0
        total[0] = OVERHEAD_BYTES + size + len(route.stored) + text.n + len(self.extra)
        return 1

    cdef int _take(self, Head *h, Props *props, Route route, const uint8_t *body, Py_ssize_t size, Py_ssize_t count,
                   int64_t offset, const uint8_t *born, int64_t now_ms, bint binary) except -1:
        """Add the records of a plain send, and its answer."""
        cdef int64_t first, queue_offset
        cdef int64_t offsets[INNER_MAX]
        cdef Py_ssize_t queue_id = <Py_ssize_t>h.value[QUEUE_ID], k
        cdef Str content, text, extra
        cdef Props own
        cdef int32_t flag
        if self.block is None:
            self.block = Block(self.kind)
            self.call += 1
        if route.asked[queue_id] != self.call:
            route.following[queue_id] = (<dict>self.offsets.table).get((route.topic, queue_id), 0)
            route.asked[queue_id] = self.call
        first = queue_offset = route.following[queue_id]
        extra.p = <const uint8_t *>PyBytes_AS_STRING(self.extra)
        if h.code != SEND_BATCH:
            content.p = body
            content.n = size
            extra.n = len(self.extra)
            offsets[0] = offset
            self._record(h, props, route, content, h.text[PROPERTIES], extra, <int32_t>h.value[FLAG], queue_offset,
                         offset, born, now_ms)
            queue_offset += 1
        else:
            extra.n = 0
            for k in range(count):
                content.p = body + INNER_FIXED_BYTES
                content.n = <int32_t>ld32(body + INNER_BODY_SIZE_AT)
                flag = <int32_t>ld32(body + INNER_FLAG_AT)
                text.p = content.p + content.n + 2
                text.n = ld16(text.p - 2)
                scan(text.p, text.n, &own)
                offsets[k] = offset
                offset += self._record(h, &own, route, content, text, extra, flag, queue_offset, offset, born, now_ms)
                queue_offset += 1
                body = text.p + text.n
        route.following[queue_id] = queue_offset
        if not h.flag & 2:
            if binary:
                self._answer_binary(h, props, offsets, count, first)
            else:
                self._answer_json(h, props, offsets, count, first)
        return 0

    cdef int64_t _record(self, Head *h, Props *props, Route route, Str body, Str text, Str extra, int32_t flag,
                         int64_t queue_offset, int64_t offset, const uint8_t *born, int64_t now_ms) except -1:
        """Add one record; its size."""
        cdef Py_ssize_t topic_bytes = len(route.stored)
        cdef Py_ssize_t total = OVERHEAD_BYTES + body.n + topic_bytes + text.n + extra.n
        cdef uint8_t *p = self.records.room(total)
        cdef Entry *e = self.block.add(route, props.unique, props.keys)
        e.offset = offset
        e.size = <int32_t>total
        e.queue_id = <int32_t>h.value[QUEUE_ID]
        e.queue_offset = queue_offset
        e.stored = now_ms
        e.sys_flag = <int32_t>h.value[SYS_FLAG]
        e.tag = <int32_t>java_hash(0, props.tags.p, props.tags.n)
        st32(p + SIZE_AT, <uint32_t>total)
        st32(p + MAGIC_AT, MAGIC_V1)
        st32(p + CRC_AT, keelmq_crc32(body.p, body.n) & 0x7FFFFFFFu)
        st32(p + QUEUE_AT, <uint32_t>e.queue_id)
        st32(p + FLAG_AT, <uint32_t>flag)
        st64(p + QUEUE_OFFSET_AT, <uint64_t>queue_offset)
        st64(p + OFFSET_AT, <uint64_t>offset)
        st32(p + SYS_FLAG_AT, <uint32_t>e.sys_flag)
        st64(p + BORN_AT, <uint64_t>h.value[BORN])
        memcpy(p + BORN_HOST_AT, born, HOST_BYTES)
        st64(p + STORED_AT, <uint64_t>now_ms)
        memcpy(p + STORE_HOST_AT, PyBytes_AS_STRING(self.host), HOST_BYTES)
        st32(p + RECONSUMED_AT, <uint32_t><int32_t>h.value[RECONSUMED])
        st64(p + PREPARED_AT, 0)
        st32(p + BODY_SIZE_AT, <uint32_t>body.n)
        p += FIXED_BYTES
        memcpy(p, body.p, body.n)
        p += body.n
        memcpy(p, PyBytes_AS_STRING(route.stored), topic_bytes)
        p += topic_bytes
        st16(p, <uint16_t>(text.n + extra.n))
        p += 2
        memcpy(p, text.p, text.n)
        memcpy(p + text.n, extra.p, extra.n)
        self.records.n += total
        return total

    cdef uint8_t *_reply_room(self, Props *props, Py_ssize_t count, list parts) except NULL:
        cdef Py_ssize_t size = 256 + props.unique.n + 33 * count
        for part in parts:
            size += PyBytes_GET_SIZE(part)
        return self.reply.room(size)

    cdef uint8_t *_ids(self, uint8_t *to, int64_t *offsets, Py_ssize_t count) noexcept:
        """Message ids: host and offset, comma-joined."""
        cdef Py_ssize_t k
        for k in range(count):
            if k:
                to[0] = 44
                to += 1
            memcpy(to, PyBytes_AS_STRING(self.host_hex), 2 * HOST_BYTES)
            hex16(to + 2 * HOST_BYTES, <uint64_t>offsets[k])
            to += 2 * HOST_BYTES + 16
        return to

    cdef int _answer_json(self, Head *h, Props *props, int64_t *offsets, Py_ssize_t count, int64_t first) except -1:
        cdef uint8_t *frame = self._reply_room(props, count, self.json)
        cdef uint8_t *to = put(frame + 8, self.json[0])
        to += decimal(to, h.value[QUEUE_ID])
        to = put(to, self.json[1])
        memcpy(to, props.unique.p, props.unique.n)
        to = put(to + props.unique.n, self.json[2])
        to = put(self._ids(to, offsets, count), self.json[3])
        to += decimal(to, first)
        to = put(to, self.json[4])
        to += decimal(to, h.opaque)
        to = put(to, self.json[5])
        st32(frame, <uint32_t>(to - frame - 4))
        st32(frame + 4, <uint32_t>(to - frame - 8))
        self.reply.n += to - frame
        return 0

    cdef int _answer_binary(self, Head *h, Props *props, int64_t *offsets, Py_ssize_t count, int64_t first) except -1:
        cdef uint8_t *frame = self._reply_room(props, count, self.binary)
        cdef uint8_t *fields = put(frame + 8, self.binary[0])
        cdef uint8_t *to = put(fields, self.binary[1])
        cdef int digits = decimal(to + 4, h.value[QUEUE_ID])
        st32(to, digits)
        to = put(to + 4 + digits, self.binary[2])
        st32(to, <uint32_t>props.unique.n)
        memcpy(to + 4, props.unique.p, props.unique.n)
        to = put(to + 4 + props.unique.n, self.binary[3])
        st32(to, <uint32_t>(33 * count - 1))
        to = put(self._ids(to + 4, offsets, count), self.binary[4])
        digits = decimal(to + 4, first)
        st32(to, digits)
        to = put(to + 4 + digits, self.binary[5])
        st32(frame, <uint32_t>(to - frame - 4))
        st32(frame + 4, <uint32_t>(1 << 24 | (to - frame - 8)))
        st32(frame + 8 + BINARY_OPAQUE_AT, <uint32_t><int32_t>h.opaque)
        st32(frame + 8 + BINARY_EXT_AT, <uint32_t>(to - fields))
        self.reply.n += to - frame
        return 0


cdef inline uint8_t *put(uint8_t *to, object part) noexcept:
    memcpy(to, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
    return to + PyBytes_GET_SIZE(part)


cdef Py_ssize_t inner_count(const uint8_t *p, Py_ssize_t size, Py_ssize_t most, Py_ssize_t overhead,
                            int64_t *total) noexcept nogil:
    """How many messages a packed batch has, and what their records take; 0: it needs the ordinary way."""
    cdef Py_ssize_t count = 0
    cdef int64_t whole, body, properties
    total[0] = 0
    if most > INNER_MAX:
        most = INNER_MAX
    while size > 0:
        if size < INNER_FIXED_BYTES + 2 or count == most:
            return 0
        whole = <int32_t>ld32(p + INNER_SIZE_AT)
        body = <int32_t>ld32(p + INNER_BODY_SIZE_AT)
        if body < 0 or whole > size or INNER_FIXED_BYTES + body + 2 > whole:
            return 0
        properties = ld16(p + INNER_FIXED_BYTES + body)
        if properties > 0x7FFF or INNER_FIXED_BYTES + body + 2 + properties != whole:
            return 0
        p += INNER_FIXED_BYTES + body + 2
        if memchr(p, 0, properties) != NULL:
            return 0  # the store closes properties that end in one, and refuses many: they would look torn
        if not is_utf8(p, <Py_ssize_t>properties) or holds_own(p, <Py_ssize_t>properties):
            return 0
        total[0] += overhead + body + properties
        p += properties
        size -= <Py_ssize_t>whole
        count += 1
    return count
