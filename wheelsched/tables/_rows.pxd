"""Rows of one C struct in chunks of 4,096, and byte strings with a reference count."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef enum:
    CHUNK = 4096
    WORDS = 64  # words of the used bit map in one chunk

cdef extern from *:
    """
    #define WHEELSCHED_NONE 0xFFFFFFFFu
    """
    const uint32_t NONE "WHEELSCHED_NONE"

cdef struct Blob:
    uint32_t refs
    uint32_t size
    # the bytes follow


cdef inline char* blob_data(Blob* b) noexcept nogil:
    return <char*>b + sizeof(Blob)


cdef inline Blob* blob_new(const char* data, size_t size) noexcept nogil:
    """A blob with one reference; NULL for no bytes and when memory is out (size tells which)."""
    if size == 0:
        return NULL
    cdef Blob* b = <Blob*>malloc(sizeof(Blob) + size)
    if b == NULL:
        return NULL
    b.refs = 1
    b.size = <uint32_t>size
    memcpy(blob_data(b), data, size)
    return b


cdef inline Blob* blob_share(Blob* b) noexcept nogil:
    if b != NULL:
        b.refs += 1
    return b


cdef inline void blob_drop(Blob* b) noexcept nogil:
    if b != NULL:
        b.refs -= 1
        if b.refs == 0:
            free(b)


cdef inline bytes blob_bytes(Blob* b):
    if b == NULL:
        return b""
    return blob_data(b)[:b.size]


cdef Blob* blob_from(bytes data) except? NULL
cdef Blob* blob_instead(Blob* old, bytes data) except? NULL


cdef class Rows:
    cdef size_t row_size
    cdef char** chunks
    cdef uint64_t* used
    cdef uint8_t* saved
    cdef uint32_t chunk_count
    cdef uint32_t hint  # no row below hint * 64 is free
    cdef readonly uint32_t count
    cdef bint copying
    cdef bint dropped  # there was no memory for the snapshot
    cdef uint32_t copy_at
    cdef uint32_t copy_end
    cdef dict copies

    cdef uint32_t alloc(self) except? 0xFFFFFFFF
    cdef int release(self, uint32_t i) except -1
    cdef int grow(self) except -1
    cdef int keep(self, uint32_t chunk) except -1
    cdef bytes dump_rows(self, uint32_t chunk)
    cdef int clear_row(self, char* row) except -1

    cdef inline char* row(self, uint32_t i) noexcept nogil:
        return self.chunks[i >> 12] + (i & (CHUNK - 1)) * self.row_size

    cdef inline bint live(self, uint32_t i) noexcept nogil:
        return (i >> 12) < self.chunk_count and (self.used[i >> 6] >> (i & 63)) & 1

    cdef inline int touch(self, uint32_t i) except -1:
        """Called before every change of a row: what a running snapshot still needs is copied first."""
        if self.copying and not self.saved[i >> 12] and (i >> 12) < self.copy_end:
            self.keep(i >> 12)
        return 0
