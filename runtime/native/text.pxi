# Numbers, UTF-8, Java's hash, and what a properties text says.

cdef struct Str:
    const uint8_t *p
    Py_ssize_t n


cdef inline bint same(Str a, const char *b, Py_ssize_t n) noexcept nogil:
    return a.n == n and memcmp(a.p, b, n) == 0


cdef bint number(Str text, int64_t least, int64_t most, int64_t *value) noexcept nogil:
    """Whether ``text`` is a number as every client writes it, within bounds."""
    cdef Py_ssize_t k = 0
    cdef int64_t v = 0
    cdef bint negative = text.n > 0 and text.p[0] == 45
    if negative:
        k = 1
    if k >= text.n or text.n - k > 18 or (text.p[k] == 48 and text.n > 1):
        return False
    while k < text.n:
        if text.p[k] < 48 or text.p[k] > 57:
            return False
        v = v * 10 + (text.p[k] - 48)
        k += 1
    if negative:
        v = -v
    value[0] = v
    return least <= v <= most


cdef int decimal(uint8_t *to, int64_t value) noexcept nogil:
    """Write a number; how many bytes it took (at most 20)."""
    cdef uint8_t digits[24]
    cdef int k = 0, n = 0
    cdef uint64_t u = <uint64_t>value
    if value < 0:
        to[0] = 45
        n = 1
        u = 0 - u
    while True:
        digits[k] = <uint8_t>(48 + u % 10)
        u //= 10
        k += 1
        if u == 0:
            break
    while k > 0:
        k -= 1
        to[n] = digits[k]
        n += 1
    return n


cdef void hex16(uint8_t *to, uint64_t value) noexcept nogil:
    """16 digits, upper case."""
    cdef int k = 15
    cdef int digit
    while k >= 0:
        digit = <int>(value & 15)
        to[k] = <uint8_t>(48 + digit if digit < 10 else 55 + digit)
        value >>= 4
        k -= 1


cdef bint is_utf8(const uint8_t *p, Py_ssize_t n) noexcept nogil:
    """As Python decodes it: no overlong form, no surrogate."""
    cdef Py_ssize_t k = 0
    cdef uint8_t c
    while k < n:
        c = p[k]
        if c < 0x80:
            k += 1
        elif c < 0xC2:
            return False
        elif c < 0xE0:
            if n - k < 2 or (p[k + 1] & 0xC0) != 0x80:
                return False
            k += 2
        elif c < 0xF0:
            if n - k < 3 or (p[k + 1] & 0xC0) != 0x80 or (p[k + 2] & 0xC0) != 0x80:
                return False
            if (c == 0xE0 and p[k + 1] < 0xA0) or (c == 0xED and p[k + 1] >= 0xA0):
                return False
            k += 3
        elif c < 0xF5:
            if (n - k < 4 or (p[k + 1] & 0xC0) != 0x80 or (p[k + 2] & 0xC0) != 0x80
                    or (p[k + 3] & 0xC0) != 0x80):
                return False
            if (c == 0xF0 and p[k + 1] < 0x90) or (c == 0xF4 and p[k + 1] >= 0x90):
                return False
            k += 4
        else:
            return False
    return True


cdef uint32_t java_hash(uint32_t h, const uint8_t *p, Py_ssize_t n) noexcept nogil:
    """``String.hashCode`` of valid UTF-8, going on from ``h``: a sum over UTF-16 units."""
    cdef Py_ssize_t k = 0
    cdef uint32_t c
    while k < n:
        c = p[k]
        if c < 0x80:
            h = h * 31 + c
            k += 1
        elif c < 0xE0:
            h = h * 31 + ((c & 31) << 6 | (p[k + 1] & 63u))
            k += 2
        elif c < 0xF0:
            h = h * 31 + ((c & 15) << 12 | (p[k + 1] & 63u) << 6 | (p[k + 2] & 63u))
            k += 3
        else:
            c = ((c & 7) << 18 | (p[k + 1] & 63u) << 12 | (p[k + 2] & 63u) << 6 | (p[k + 3] & 63u)) - 0x10000u
            h = (h * 31 + (0xD800u + (c >> 10))) * 31 + (0xDC00u + (c & 0x3FFu))
            k += 4
    return h


cdef inline uint32_t index_hash(uint32_t h) noexcept nogil:
    """|h| of 32 bits with a sign; 0 for the smallest."""
    if h < 0x80000000u:
        return h
    return 0 if h == 0x80000000u else 0 - h


cdef struct Props:
    Str unique, tags, keys  # p is NULL where there is none


cdef inline bint ends_with(const uint8_t *begin, const uint8_t *at, const char *name, Py_ssize_t n) noexcept nogil:
    """Whether ``name`` stands right before ``at``, in the text from ``begin`` on."""
    return at - begin >= n and memcmp(at - n, name, n) == 0


cdef void scan(const uint8_t *p, Py_ssize_t n, Props *found) noexcept nogil:
    """The last of each property looked at that has a value, as ``model.message.property_of`` finds it."""
    cdef const uint8_t *at = p
    cdef const uint8_t *end = p + n
    cdef const uint8_t *stop
    cdef Py_ssize_t size
    found.unique.p = NULL
    found.unique.n = 0
    found.tags = found.unique
    found.keys = found.unique
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        size = stop - at
        if size > 5 and at[4] == 1:
            if memcmp(at, b"TAGS", 4) == 0:
                found.tags.p = at + 5
                found.tags.n = size - 5
            elif memcmp(at, b"KEYS", 4) == 0:
                found.keys.p = at + 5
                found.keys.n = size - 5
        elif size > 9 and at[8] == 1 and memcmp(at, b"UNIQ_KEY", 8) == 0:
            found.unique.p = at + 9
            found.unique.n = size - 9
        at = stop + 1


cdef bint holds_own(const uint8_t *p, Py_ssize_t n) noexcept nogil:
    """As ``send_format.holds_own``. All of these have an underscore."""
    cdef const uint8_t *at = p
    cdef const uint8_t *end = p + n
    while True:
        at = <const uint8_t *>memchr(at, 95, end - at)
        if at == NULL:
            return False
        if ends_with(p, at, b"REAL", 4) or ends_with(p, at, b"INNER", 5):
            return True
        if ends_with(p, at, b"TIMER", 5) or ends_with(p, at, b"TRANSACTION", 11):
            return True
        if end - at >= 8 and memcmp(at, b"__CRC32#", 8) == 0:
            return True
        if end - at >= 3 and memcmp(at, b"_AS", 3) == 0 and ends_with(p, at, b"DELAYED", 7):
            return True
        at += 1


cdef bint is_special(const uint8_t *p, Py_ssize_t n) noexcept nogil:
    """As ``send_format.is_special``."""
    cdef const uint8_t *at = p
    cdef const uint8_t *end = p + n
    cdef uint8_t last
    while at < end:
        at = <const uint8_t *>memchr(at, 1, end - at)
        if at == NULL:
            break
        if at > p:
            last = (at - 1)[0]
            if last == 89:
                if ends_with(p, at, b"DELAY", 5):
                    return True
            elif last == 84:
                if ends_with(p, at, b"WAIT", 4) and at + 1 < end and (at[1] == 102 or at[1] == 70):
                    return True
            elif last == 82:
                if ends_with(p, at, b"CLUSTER", 7):
                    return True
            elif last == 71:
                if ends_with(p, at, b"TRAN_MSG", 8):
                    return True
            elif last == 78:
                if ends_with(p, at, b"MSG_REGION", 10) or ends_with(p, at, b"TRACE_ON", 8):
                    return True
            elif last == 75:
                if ends_with(p, at, b"POP_CK", 6):
                    return True
        at += 1
    return holds_own(p, n)


cdef bint is_alphanumeric(Str text) noexcept nogil:
    cdef Py_ssize_t k
    cdef uint8_t c
    for k in range(text.n):
        c = text.p[k]
        if not (48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122):
            return False
    return text.n > 0
