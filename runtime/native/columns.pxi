# Bytes of a log -> columns of its records, for the audit.
#
# Written from RocketMQ's layout, as audit/reading/records/record.py, which says what is right; not by the code that parses
# for the broker: an audit by that would share its mistakes (docs/decisions/0011-audit-decoder.md).

cdef enum:
    LOG_RECORD_MIN = 91
    LOG_RECORD_MAX = 32 * 1024 * 1024 + 65536
    LOG_TEXT_MAX = 8 * 1024 * 1024  # bytes of keys and topics that wait, whatever the number of rows
    LOG_COMPRESSED = 0x1
    LOG_BORN_V6 = 0x10
    LOG_STORED_V6 = 0x20
    LOG_BATCH = 0x80

cdef uint32_t LOG_V1 = 0xDAA320A7u
cdef uint32_t LOG_V2 = 0xDAA320ABu


cdef struct LogRecord:
    int64_t size, stored, tags
    uint32_t crc, flag
    int32_t advance
    bint has_crc
    Str topic, key


cdef inline bint all_digits(const uint8_t *p, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t k
    for k in range(n):
        if p[k] < 48 or p[k] > 57:
            return False
    return n > 0


cdef inline bint ascii_only(Str text) noexcept nogil:
    cdef Py_ssize_t k
    for k in range(text.n):
        if text.p[k] >= 0x80:
            return False
    return True


cdef inline bint takes_value(Str *found, const uint8_t *at, Py_ssize_t size, const char *mark, Py_ssize_t n) noexcept nogil:
    """Whether the property at ``at`` has this mark and a value; the last one's is kept."""
    if size <= n or memcmp(at, mark, n) != 0:
        return False
    found.p = at + n
    found.n = size - n
    return True


cdef bint read_properties(const uint8_t *p, Py_ssize_t n, LogRecord *r, bint delayed) noexcept nogil:
    """False: they hold what is not plain."""
    cdef const uint8_t *at = p
    cdef const uint8_t *end = p + n
    cdef const uint8_t *stop
    cdef Py_ssize_t size, k
    cdef Str tags, delay, inner
    cdef bint positive = False
    tags.p = delay.p = inner.p = r.key.p = NULL
    tags.n = delay.n = inner.n = r.key.n = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        size = stop - at
        if size >= 5:
            if at[0] == 85:
                takes_value(&r.key, at, size, b"UNIQ_KEY\x01", 9)
            elif at[0] == 84:
                takes_value(&tags, at, size, b"TAGS\x01", 5)
            elif at[0] == 68:
                takes_value(&delay, at, size, b"DELAY\x01", 6)
            elif at[0] == 73:
                takes_value(&inner, at, size, b"INNER_NUM\x01", 10)
        at = stop + 1
    if not is_utf8(r.key.p, r.key.n):
        return False
    r.advance = 1
    if r.flag & LOG_BATCH:
        if inner.n > 9 or not ascii_only(inner):
            return False
        if all_digits(inner.p, inner.n):
            r.advance = 0
            for k in range(inner.n):
                r.advance = r.advance * 10 + (inner.p[k] - 48)
            if r.advance == 0:
                r.advance = 1
    if delayed:
        if not ascii_only(delay):
            return False
        if all_digits(delay.p, delay.n):
            for k in range(delay.n):
                positive |= delay.p[k] != 48
        if positive:
            r.tags = r.stored
            return True
    if not is_utf8(tags.p, tags.n):
        return False
    r.tags = <int32_t>java_hash(0, tags.p, tags.n)
    return True


cdef bint crc_property_is_right(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Of the record that ends in it. One that is no number says nothing."""
    cdef const uint8_t *digits = p + size - 11
    cdef uint64_t written = 0
    cdef int k = 9
    if p[size - 1] != 2 or not all_digits(digits, 10):
        return True
    while k >= 0:
        written = written * 10 + (digits[k] - 48)
        k -= 1
    return written == (keelmq_crc32(p, size - 20) & 0x7FFFFFFFu)


cdef bint read_record(const uint8_t *p, Py_ssize_t n, int64_t offset, bint packed, Str scheduled, LogRecord *r) noexcept nogil:
    """The record at ``p``, physical ``offset``, of which ``n`` bytes are there; False: it is not whole, sound and
    plain."""
    cdef uint32_t magic
    cdef int64_t body_at, topic_at, name_at, name_end
    cdef int32_t body
    cdef bint delayed
    if n < LOG_RECORD_MIN:
        return False
    r.size = <int32_t>ld32(p)
    magic = ld32(p + 4)
    if r.size < LOG_RECORD_MIN or r.size > LOG_RECORD_MAX or r.size > n or (magic != LOG_V1 and magic != LOG_V2):
        return False
    if <int64_t>ld64(p + 28) != offset:
        return False
    r.crc = ld32(p + 8)
    r.flag = ld32(p + 36)
    if r.flag & LOG_COMPRESSED and not packed:
        return False
    body_at = 56 + (12 if r.flag & LOG_BORN_V6 else 0)
    r.stored = <int64_t>ld64(p + body_at)
    body_at += 32 + (12 if r.flag & LOG_STORED_V6 else 0)
    if body_at + 3 > r.size:
        return False
    body = <int32_t>ld32(p + body_at - 4)
    topic_at = body_at + body
    if body < 0 or topic_at + 3 > r.size:
        return False
    if magic == LOG_V1:
        name_at = topic_at + 1
        name_end = name_at + p[topic_at]
    else:
        name_at = topic_at + 2
        name_end = name_at + ld16(p + topic_at)
    if name_end + 2 > r.size or name_end + 2 + ld16(p + name_end) != r.size:
        return False
    if p[r.size - 1] == 0 and name_end + 2 < r.size:
        return False  # were the properties written to their end?
    if (keelmq_crc32(p + body_at, body) & 0x7FFFFFFFu) != r.crc:
        return False
    r.has_crc = memcmp(p + r.size - 20, b"__CRC32#\x01", 9) == 0
    if r.has_crc and not crc_property_is_right(p, <Py_ssize_t>r.size):
        return False
    r.topic.p = p + name_at
    r.topic.n = <Py_ssize_t>(name_end - name_at)
    delayed = r.topic.n == scheduled.n and memcmp(r.topic.p, scheduled.p, scheduled.n) == 0
    return read_properties(p + name_end + 2, <Py_ssize_t>(r.size - name_end - 2), r, delayed)


cdef class Columns:
    """Of records in log order, up to ``most``: what ``take`` reads and ``add`` is given. ``scheduled``: the topic
    whose messages have when they were stored for a tags code, if they are delayed."""

    cdef readonly bint carries_crc
    cdef Py_ssize_t most, rows
    cdef bytes scheduled
    cdef dict codes
    cdef bytes topic  # the last one, and its code
    cdef int32_t code
    cdef int64_t topic_bytes
    cdef Bytes offset, until, queue, place, key_end, keys, crc, plain, flag, advance, tags, codes_of

    def __init__(self, Py_ssize_t most, str scheduled):
        self.most = most
        self.scheduled = scheduled.encode()
        self.carries_crc = False
        self.offset, self.until, self.place = Bytes(), Bytes(), Bytes()
        self.crc, self.plain, self.tags = Bytes(), Bytes(), Bytes()
        self.queue, self.flag, self.advance = Bytes(), Bytes(), Bytes()
        self.keys, self.key_end, self.codes_of = Bytes(), Bytes(), Bytes()
        self._clear()

    cdef void _clear(self):
        self.rows = 0
        self.codes = {}
        self.topic = None
        self.code = -1
        self.topic_bytes = 0

    def __len__(self):
        return self.rows

    @property
    def full(self):
        """Whether no more rows are taken before these are."""
        return self.rows >= self.most or self.keys.n + self.topic_bytes >= LOG_TEXT_MAX

    def take(self, object buffer, int64_t base, int64_t position, int64_t stop, bint packed):
        """The sound records from physical offset ``position`` on, that begin before ``stop``; where the first one
        stands that is not taken. ``buffer`` begins at ``base``. ``packed``: compressed ones as well."""
        cdef Py_buffer view
        if position < base:
            return position
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            return self._take(<const uint8_t *>view.buf, view.len, base, position, stop, packed)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _take(self, const uint8_t *data, Py_ssize_t n, int64_t base, int64_t position, int64_t stop,
                       bint packed) except -1:
        cdef LogRecord r
        cdef Str scheduled
        cdef Py_ssize_t at
        scheduled.p = <const uint8_t *>PyBytes_AS_STRING(self.scheduled)
        scheduled.n = PyBytes_GET_SIZE(self.scheduled)
        r.tags = 0
        while position < stop and position - base < n:
            if self.rows >= self.most or self.keys.n + self.topic_bytes >= LOG_TEXT_MAX:
                break
            at = <Py_ssize_t>(position - base)
            if not read_record(data + at, n - at, position, packed, scheduled, &r):
                break
            if not self._find_topic(r.topic):
                break
            self.carries_crc |= r.has_crc
            self._put(position, r.size, <int32_t>ld32(data + at + 12), <int64_t>ld64(data + at + 20), r.key,
                      r.crc, -1, <int32_t>r.flag, r.advance, r.tags)
            position += r.size
        return position

    cdef bint _find_topic(self, Str name) except -1:
        """Make it the last one; False: it is no UTF-8."""
        cdef object known
        if self.topic is not None and PyBytes_GET_SIZE(self.topic) == name.n and memcmp(
                PyBytes_AS_STRING(self.topic), name.p, name.n) == 0:
            return True
        if not is_utf8(name.p, name.n):
            return False
        self.topic = PyBytes_FromStringAndSize(<char *>name.p, name.n)
        known = self.codes.get(self.topic)
        if known is None:
            known = self.codes[self.topic] = len(self.codes)
        self.code = known
        return True

    cdef int _put(self, int64_t offset, int64_t size, int32_t queue, int64_t place, Str key, int64_t crc,
                  int64_t plain, int32_t flag, int32_t advance, int64_t tags) except -1:
        """A row of the last topic."""
        put64(self.offset, offset)
        put64(self.until, offset + size)
        put64(self.place, place)
        put64(self.crc, crc)
        put64(self.plain, plain)
        put64(self.tags, tags)
        put32(self.queue, queue)
        put32(self.flag, flag)
        put32(self.advance, advance)
        put32(self.codes_of, self.code)
        if key.n:
            memcpy(self.keys.room(key.n), key.p, key.n)
            self.keys.n += key.n
        put32(self.key_end, <int32_t>self.keys.n)
        self.topic_bytes += PyBytes_GET_SIZE(self.topic)
        self.rows += 1
        return 0

    def add(self, int64_t offset, int64_t size, bytes topic, int32_t queue, int64_t place, bytes key, int64_t crc,
            int64_t plain, int32_t flag, int32_t advance, int64_t tags):
        """A row that was read elsewhere; texts are UTF-8."""
        cdef Str name, unique
        name.p, name.n = <const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
        unique.p, unique.n = <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        if not self._find_topic(name):
            raise ValueError("a topic that is no UTF-8")
        self._put(offset, size, queue, place, unique, crc, plain, flag, advance, tags)

    def taken(self):
        """The rows, of which there are none any more: bytes of each column, in this machine's order. Of texts
        where each one ends, from a first 0 on, and the texts."""
        cdef bytes text_end, text
        cdef Py_ssize_t count = self.rows
        text_end, text = self._topics()
        cdef bytes key_end = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
        memset(PyBytes_AS_STRING(key_end), 0, 4)
        memcpy(PyBytes_AS_STRING(key_end) + 4, self.key_end.p, count * 4)
        self.key_end.clear()
        self.codes_of.clear()
        self._clear()
        return (count, self.offset.taken(), self.until.taken(), text_end, text, self.queue.taken(),
                self.place.taken(), key_end, self.keys.taken(), self.crc.taken(), self.plain.taken(),
                self.flag.taken(), self.advance.taken(), self.tags.taken())

    cdef tuple _topics(self):
        cdef list names = list(self.codes)
        cdef bytes ends = PyBytes_FromStringAndSize(NULL, (self.rows + 1) * 4)
        cdef bytes text = PyBytes_FromStringAndSize(NULL, self.topic_bytes)
        cdef int32_t *end = <int32_t *>PyBytes_AS_STRING(ends)
        cdef const int32_t *code = <const int32_t *>self.codes_of.p
        cdef char *to = PyBytes_AS_STRING(text)
        cdef Py_ssize_t k, at = 0, n = 0
        cdef int32_t last = -1
        cdef bytes name = b""
        end[0] = 0
        for k in range(self.rows):
            if code[k] != last:
                last = code[k]
                name = <bytes>names[last]
                n = PyBytes_GET_SIZE(name)
            memcpy(to + at, PyBytes_AS_STRING(name), n)
            at += n
            end[k + 1] = <int32_t>at
        return ends, text


cdef inline int put64(Bytes to, int64_t value) except -1:
    memcpy(to.room(8), &value, 8)
    to.n += 8
    return 0


cdef inline int put32(Bytes to, int32_t value) except -1:
    memcpy(to.room(4), &value, 4)
    to.n += 4
    return 0
