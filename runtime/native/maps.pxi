# Parts of a log's files, mapped: where a pull's records lie apart, each is copied once, from the page cache.

cdef extern from "sys/mman.h" nogil:
    void *mmap(void *place, size_t size, int protection, int flags, int descriptor, int64_t offset)
    int munmap(void *place, size_t size)
    int PROT_READ, MAP_SHARED
    void *MAP_FAILED

cdef extern from "sys/stat.h" nogil:
    struct stat:
        int64_t st_size
    int fstat(int descriptor, stat *told)

cdef extern from "guarded.h" nogil:
    bint keelmq_guard_stands()
    bint keelmq_copy_guarded(uint8_t *to, const uint8_t *origin, int64_t first, const int64_t *places,
                             const int32_t *sizes, int count)

cdef enum:
    SPAN_MAX = 256 << 10
    SLICES = 8
    SLICE_BYTES = 4 << 20
    MAPPED_BYTES = SLICE_BYTES + SPAN_MAX  # a span that begins in a slice ends in its mapping


cdef struct Slice:
    uint8_t *p  # NULL: none
    int descriptor
    int64_t at  # in the file
    int64_t used  # when, of all uses


cdef class Maps:
    """SLICES parts of the files of one log; who needs another one gives up the one used longest ago.

    Holds: no slice outlives the ``close`` of its file, which calls ``forget`` (``runtime.os_env.OsFile``): the
    blocks of a file that was removed are free then, and its descriptor may be another's.

    A queue's records lie in the gaps of others, and queues are read some MB apart from each other. To read all
    between the first and the last record into memory, for those that follow, costs each message a write to memory
    that the processor's cache has no room for: a pull of the Java consumer took a sixth more.
    """

    cdef Slice[SLICES] _slices
    cdef int64_t _uses
    cdef bint _lent, _stale
    cdef uint8_t *_span

    def __dealloc__(self):
        self._drop(-1)
        free(self._span)

    @property
    def mapped(self):
        """Bytes; a page of them that nobody read takes no memory."""
        return sum([MAPPED_BYTES for k in range(SLICES) if self._slices[k].p != NULL])

    def forget(self, int descriptor):
        """Its file is about to be closed."""
        if self._lent:
            self._stale = True
        else:
            self._drop(descriptor)

    cdef void _drop(self, int descriptor) noexcept nogil:
        """Of one file; -1: of all."""
        cdef int k
        for k in range(SLICES):
            if self._slices[k].p != NULL and descriptor in (-1, self._slices[k].descriptor):
                munmap(self._slices[k].p, MAPPED_BYTES)
                self._slices[k].p = NULL

    cdef bint lend(self, bint guarded) noexcept:
        """Whether this thread may read through them, until it gives them back. ``guarded``: for a moment it is
        known that the guard stands: the pulls of one read ask the system once."""
        if self._lent or not (guarded or keelmq_guard_stands()):
            return False
        self._lent = True
        return True

    cdef void give_back(self) noexcept:
        self._lent = False
        if self._stale:
            self._stale = False
            self._drop(-1)

    cdef bint copy(self, uint8_t *to, int descriptor, const int64_t *places, const int32_t *sizes,
                   int count) noexcept nogil:
        """Put pieces of a file, in order, one behind the other, that lie within SPAN_MAX bytes; False: some cannot
        be had this way. ``to`` may then be any bytes."""
        cdef int64_t at = places[0] // SLICE_BYTES * SLICE_BYTES
        cdef Slice *found = self._slice(descriptor, at)
        cdef stat told
        if found == NULL or not keelmq_copy_guarded(to, found.p, at, places, sizes, count):
            return False
        # What lies behind the file's end in its last page reads as zeros.
        return fstat(descriptor, &told) == 0 and places[count - 1] + sizes[count - 1] <= told.st_size

    cdef Slice *_slice(self, int descriptor, int64_t at) noexcept nogil:
        cdef int k, oldest = 0
        cdef Slice *one
        self._uses += 1
        for k in range(SLICES):
            one = &self._slices[k]
            if one.p != NULL and one.descriptor == descriptor and one.at == at:
                one.used = self._uses
                return one
            if one.p == NULL or (self._slices[oldest].p != NULL and one.used < self._slices[oldest].used):
                oldest = k
        one = &self._slices[oldest]
        if one.p != NULL:
            munmap(one.p, MAPPED_BYTES)
        one.p = <uint8_t *>mmap(NULL, MAPPED_BYTES, PROT_READ, MAP_SHARED, descriptor, at)
        if one.p == MAP_FAILED:
            one.p = NULL
            return NULL
        one.descriptor, one.at, one.used = descriptor, at, self._uses
        return one

    cdef const uint8_t *aside(self, int descriptor, int64_t at, int64_t size) noexcept nogil:
        """As many bytes of a file, SPAN_MAX at most, read until the next call; NULL: they cannot be."""
        if self._span == NULL:
            self._span = <uint8_t *>malloc(SPAN_MAX)
        return self._span if self._span != NULL and _read(descriptor, self._span, at, size) else NULL
