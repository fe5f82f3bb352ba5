# Answers -> sockets.

cdef extern from "sys/socket.h" nogil:
    ssize_t send(int descriptor, const void *data, size_t size, int flags)

cdef enum:
    HANDED_AT_ONCE = 64


cdef struct Part:
    int descriptor
    const char *p
    Py_ssize_t n


def all_taken(list descriptors, list parts):
    """Hand each part to the socket of its descriptor, in this order, until the system takes less than all of one.
    (how many it took whole, bytes of that one)"""
    cdef Part run[HANDED_AT_ONCE]
    cdef Py_ssize_t at = 0, count = len(parts), k, n
    cdef Py_ssize_t sent = 0
    if len(descriptors) != count:
        raise ValueError("%d descriptors for %d parts" % (len(descriptors), count))
    while at < count:
        n = min(count - at, <Py_ssize_t>HANDED_AT_ONCE)
        for k in range(n):
            data = <bytes?>parts[at + k]
            run[k].descriptor = descriptors[at + k]
            run[k].p = PyBytes_AS_STRING(data)
            run[k].n = PyBytes_GET_SIZE(data)
        # Other threads get the interpreter once for all of them; the lists hold the parts meanwhile.
        with nogil:
            for k in range(n):
                sent = send(run[k].descriptor, run[k].p, run[k].n, 0)
                if sent < run[k].n:
                    break
            else:
                k = n
        at += k
        if k < n:
            return at, max(sent, 0)
    return at, 0
