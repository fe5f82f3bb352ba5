# Which send does a header ask for? Fields have the places of remoting/headers.SEND_NAMES: a, b, c, ...

cdef enum:
    GROUP = 0
    TOPIC = 1
    DEFAULT_TOPIC = 2
    DEFAULT_QUEUES = 3
    QUEUE_ID = 4
    SYS_FLAG = 5
    BORN = 6
    FLAG = 7
    PROPERTIES = 8
    RECONSUMED = 9
    UNIT_MODE = 10
    RECONSUMED_MAX = 11
    BATCH = 12
    BROKER_NAME = 13
    FIELDS = 14
    MANDATORY = 0xFF  # GROUP to FLAG
    OTHERS_MAX = 16
    PLAIN = 0  # a send, understood
    OTHER = 1  # no send
    ODD = 2  # perhaps a send

cdef struct Head:
    int64_t code, opaque, flag
    Str text[FIELDS]
    int64_t value[FIELDS]
    uint32_t have


cdef class Names:
    """The full names of a send's fields, by place."""

    cdef list names
    cdef Str at[FIELDS]

    def __init__(self, list names):
        cdef int k
        if len(names) != FIELDS:
            raise ValueError("a send has %d fields" % FIELDS)
        self.names = names
        for k in range(FIELDS):
            name = <bytes>names[k]
            self.at[k].p = <const uint8_t *>PyBytes_AS_STRING(name)
            self.at[k].n = PyBytes_GET_SIZE(name)

    cdef int find(self, Str name) noexcept nogil:
        cdef int k
        for k in range(FIELDS):
            if self.at[k].n == name.n and memcmp(self.at[k].p, name.p, name.n) == 0:
                return k
        return -1


cdef inline bint take_field(Head *h, int place, Str text) noexcept nogil:
    """False: it is none that every client writes so."""
    cdef uint32_t bit = 1u << place
    if h.have & bit:
        return False
    h.have |= bit
    h.text[place] = text
    if place == BORN:
        return number(text, -0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, &h.value[place])
    if DEFAULT_QUEUES <= place <= FLAG or place == RECONSUMED or place == RECONSUMED_MAX:
        return number(text, -0x80000000LL, 0x7FFFFFFF, &h.value[place])
    return True


cdef inline bint is_send(int64_t code) noexcept nogil:
    return code == SEND_V2 or code == SEND_BATCH or code == SEND_V1


cdef inline void clear(Head *h) noexcept nogil:
    cdef int k
    h.code = -1
    h.opaque = h.flag = 0
    h.have = 0
    for k in range(FIELDS):
        h.text[k].p = NULL
        h.text[k].n = 0
        h.value[k] = 0


# JSON

cdef int hex_digit(uint8_t c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    if 97 <= c <= 102:
        return c - 87
    if 65 <= c <= 70:
        return c - 55
    return -1


cdef int hex_unit(const uint8_t *p) noexcept nogil:
    """The number in four hex digits, or -1."""
    cdef int a = hex_digit(p[0]), b = hex_digit(p[1]), c = hex_digit(p[2]), d = hex_digit(p[3])
    if a < 0 or b < 0 or c < 0 or d < 0:
        return -1
    return a << 12 | b << 8 | c << 4 | d


cdef Py_ssize_t json_text(const uint8_t *p, Py_ssize_t at, Py_ssize_t n, Str *out, uint8_t *scratch,
                          Py_ssize_t *used) noexcept nogil:
    """Read the string at ``p[at]``; where it ends, or -1. An escaped one goes to ``scratch``, which has room
    for all of the header."""
    cdef Py_ssize_t begin = at + 1, k = begin
    cdef uint8_t *to
    cdef uint8_t c, high = 0
    cdef int unit, low
    if at >= n or p[at] != 34:
        return -1
    while k < n:
        c = p[k]
        if c == 34:
            out.p = p + begin
            out.n = k - begin
            return k + 1 if high < 0x80 or is_utf8(out.p, out.n) else -1
        if c == 92:
            break
        if c < 32:
            return -1
        high |= c
        k += 1
    if k >= n:
        return -1
    to = scratch + used[0]
    out.p = to
    memcpy(to, p + begin, k - begin)
    to += k - begin
    while k < n:
        c = p[k]
        if c == 34:
            out.n = to - out.p
            used[0] += out.n
            return k + 1 if high < 0x80 or is_utf8(out.p, out.n) else -1
        if c < 32:
            return -1
        if c != 92:
            high |= c
            to[0] = c
            to += 1
            k += 1
            continue
        if n - k < 2:
            return -1
        c = p[k + 1]
        if c != 117:
            if c == 110:
                c = 10
            elif c == 116:
                c = 9
            elif c == 114:
                c = 13
            elif c == 98:
                c = 8
            elif c == 102:
                c = 12
            elif c != 34 and c != 92 and c != 47:
                return -1
            to[0] = c
            to += 1
            k += 2
            continue
        if n - k < 6:
            return -1
        unit = hex_unit(p + k + 2)
        if unit < 0:
            return -1
        k += 6
        if unit < 0x80:
            to[0] = <uint8_t>unit
            to += 1
        elif unit < 0x800:
            to[0] = <uint8_t>(0xC0 | unit >> 6)
            to[1] = <uint8_t>(0x80 | (unit & 63))
            to += 2
        elif unit < 0xD800 or unit > 0xDFFF:
            to[0] = <uint8_t>(0xE0 | unit >> 12)
            to[1] = <uint8_t>(0x80 | (unit >> 6 & 63))
            to[2] = <uint8_t>(0x80 | (unit & 63))
            to += 3
        else:
            if unit > 0xDBFF or n - k < 6 or p[k] != 92 or p[k + 1] != 117:
                return -1
            low = hex_unit(p + k + 2)
            if low < 0xDC00 or low > 0xDFFF:
                return -1
            k += 6
            unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
            to[0] = <uint8_t>(0xF0 | unit >> 18)
            to[1] = <uint8_t>(0x80 | (unit >> 12 & 63))
            to[2] = <uint8_t>(0x80 | (unit >> 6 & 63))
            to[3] = <uint8_t>(0x80 | (unit & 63))
            to += 4
    return -1


cdef Py_ssize_t json_number(const uint8_t *p, Py_ssize_t at, Py_ssize_t n, int64_t *value) noexcept nogil:
    cdef Str text
    cdef Py_ssize_t k = at
    while k < n and (48 <= p[k] <= 57 or p[k] == 45):
        k += 1
    text.p = p + at
    text.n = k - at
    return k if number(text, -0x80000000LL, 0x7FFFFFFF, value) else -1


cdef Py_ssize_t json_ext(const uint8_t *p, Py_ssize_t at, Py_ssize_t n, Head *h, Names names, uint8_t *scratch,
                         Py_ssize_t *used) noexcept nogil:
    """Read the ext fields, whose brace is at ``p[at]``; where they end, or -1."""
    cdef Str key, text
    cdef Str others[OTHERS_MAX]
    cdef int place, k, other = 0
    if at >= n or p[at] != 123:
        return -1
    at += 1
    while True:
        at = json_text(p, at, n, &key, scratch, used)
        if at < 0 or at >= n or p[at] != 58:
            return -1
        at = json_text(p, at + 1, n, &text, scratch, used)
        if at < 0 or at >= n:
            return -1
        if h.code == SEND_V1:
            place = names.find(key)
        else:
            place = key.p[0] - 97 if key.n == 1 else -1
            if place >= FIELDS:
                place = -1
        if place >= 0:
            if not take_field(h, place, text):
                return -1
        else:  # no field of a send: it is not looked at, but not given twice either
            if other == OTHERS_MAX:
                return -1
            for k in range(other):
                if others[k].n == key.n and memcmp(others[k].p, key.p, key.n) == 0:
                    return -1
            others[other] = key
            other += 1
        if p[at] == 125:
            return at + 1
        if p[at] != 44:
            return -1
        at += 1


cdef int json_head(const uint8_t *p, Py_ssize_t n, Head *h, Names names, uint8_t *scratch) noexcept nogil:
    """Read a JSON header as clients write it: no blanks, code first of what matters."""
    cdef Py_ssize_t at = 1, used = 0
    cdef int64_t value
    cdef int seen = 0, bit
    cdef Str key, text
    if n < 2 or p[0] != 123:
        return ODD
    while True:
        at = json_text(p, at, n, &key, scratch, &used)
        if at < 0 or at >= n or p[at] != 58:
            return ODD
        at += 1
        if same(key, b"extFields", 9):
            bit = 1
            if not seen & 2:
                return ODD
            at = json_ext(p, at, n, h, names, scratch, &used)
        elif same(key, b"code", 4):
            bit = 2
            at = json_number(p, at, n, &h.code)
            # Of 5.0, which is none, the number ends before something else.
            if 0 <= at < n and (p[at] == 44 or p[at] == 125) and not seen & 2 and not is_send(h.code):
                return OTHER
        elif same(key, b"opaque", 6):
            bit = 4
            at = json_number(p, at, n, &h.opaque)
        elif same(key, b"flag", 4):
            bit = 8
            at = json_number(p, at, n, &h.flag)
        elif same(key, b"version", 7):
            bit = 16
            at = json_number(p, at, n, &value)
        elif same(key, b"language", 8):
            bit = 32
            at = json_text(p, at, n, &text, scratch, &used)
        elif same(key, b"serializeTypeCurrentRPC", 23):
            bit = 64
            at = json_text(p, at, n, &text, scratch, &used)
        else:
            return ODD
        if at < 0 or at >= n or seen & bit:
            return ODD
        seen |= bit
        if p[at] == 44:
            at += 1
        elif p[at] == 125:
            return PLAIN if at + 1 == n else ODD
        else:
            return ODD


# ROCKETMQ

cdef int binary_head(const uint8_t *p, Py_ssize_t n, Head *h, Names names) noexcept nogil:
    cdef Py_ssize_t at = BINARY_BYTES
    cdef int place
    cdef int64_t size
    cdef Str key, text
    if n < BINARY_BYTES:
        return ODD
    h.code = ld16(p)
    if not is_send(h.code):
        return OTHER
    h.opaque = <int32_t>ld32(p + BINARY_OPAQUE_AT)
    h.flag = <int32_t>ld32(p + BINARY_FLAG_AT)
    if ld32(p + BINARY_REMARK_AT) != 0 or ld32(p + BINARY_EXT_AT) != n - BINARY_BYTES:
        return ODD
    while at < n:
        if n - at < 2:
            return ODD
        key.n = ld16(p + at)
        key.p = p + at + 2
        if key.n > n - at - 6:
            return ODD
        at += 2 + key.n
        size = <int32_t>ld32(p + at)
        at += 4
        if size < 0 or size > n - at:
            return ODD
        text.p = p + at
        text.n = <Py_ssize_t>size
        at += text.n
        if h.code == SEND_V1:
            place = names.find(key)
        else:
            place = key.p[0] - 97 if key.n == 1 else -1
        if place < 0 or place >= FIELDS or not take_field(h, place, text) or not is_utf8(text.p, text.n):
            return ODD
    return PLAIN
