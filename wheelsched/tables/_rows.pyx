"""Chunked rows: lowest free row first (so that replay allocates as the live state did), and snapshots by copy-on-write.

A snapshot never stops the world: `copy_begin` marks every chunk, a chunk that is about to change is written out first, the rest
is handed out by `copy_next` in pieces. A chunk's dump holds its used map, rows with links and pointers zeroed, and the byte strings
behind them, so equal states have equal dumps: the digest is made of the same bytes.
"""

from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

cdef extern from *:
    int __builtin_ctzll(unsigned long long) noexcept nogil


cdef Blob* blob_from(bytes data) except? NULL:
    """A blob of Python bytes; NULL (without an error) for empty ones. MemoryError when memory is out."""
    cdef Blob* b = blob_new(data, len(data))
    if b == NULL and len(data):
        raise MemoryError("no memory for a byte string")
    return b


cdef Blob* blob_instead(Blob* old, bytes data) except? NULL:
    """As blob_from, and the blob whose place it takes is dropped; kept when memory is out."""
    cdef Blob* b = blob_from(data)
    blob_drop(old)
    return b


cdef class Rows:
    """Base of JobTable and RunTable; a subclass sets `row_size` and overrides `dump_rows` and `clear_row`."""

    def __cinit__(self):
        self.copies = {}

    def __dealloc__(self):
        cdef uint32_t c
        for c in range(self.chunk_count):
            free(self.chunks[c])
        free(self.chunks)
        free(self.used)
        free(self.saved)

    def __len__(self):
        return self.count

    @property
    def nbytes(self):
        """Bytes of the chunks (byte strings not counted)."""
        return self.chunk_count * (CHUNK * self.row_size + WORDS * 8 + 9)

    cdef int grow(self) except -1:
        cdef uint32_t c = self.chunk_count
        cdef char** chunks = <char**>realloc(self.chunks, (c + 1) * sizeof(char*))
        if chunks == NULL:
            raise MemoryError("no memory for another chunk of rows")
        self.chunks = chunks
        cdef uint64_t* used = <uint64_t*>realloc(self.used, (c + 1) * WORDS * 8)
        if used == NULL:
            raise MemoryError("no memory for another chunk of rows")
        self.used = used
        cdef uint8_t* saved = <uint8_t*>realloc(self.saved, c + 1)
        if saved == NULL:
            raise MemoryError("no memory for another chunk of rows")
        self.saved = saved
        self.chunks[c] = <char*>calloc(CHUNK, self.row_size)
        if self.chunks[c] == NULL:
            raise MemoryError("no memory for another chunk of rows")
        memset(self.used + c * WORDS, 0, WORDS * 8)
        self.saved[c] = 0
        self.chunk_count = c + 1
        return 0

    cdef uint32_t alloc(self) except? 0xFFFFFFFF:
        """The lowest free row, zeroed and marked as used."""
        cdef uint32_t word = self.hint
        while True:
            while word < self.chunk_count * WORDS and self.used[word] == 0xFFFFFFFFFFFFFFFFULL:
                word += 1
            if word < self.chunk_count * WORDS:
                break
            self.hint = word
            self.grow()
        self.hint = word
        cdef uint32_t bit = <uint32_t>__builtin_ctzll(~self.used[word])
        cdef uint32_t i = word * 64 + bit
        self.touch(i)
        self.used[word] |= 1ULL << bit
        memset(self.row(i), 0, self.row_size)
        self.count += 1
        return i

    cdef int release(self, uint32_t i) except -1:
        assert self.live(i), f"row {i} is not in use"
        self.touch(i)
        self.clear_row(self.row(i))
        memset(self.row(i), 0, self.row_size)
        self.used[i >> 6] &= ~(1ULL << (i & 63))
        if (i >> 6) < self.hint:
            self.hint = i >> 6
        self.count -= 1
        return 0

    cdef bytes dump_rows(self, uint32_t chunk):
        raise NotImplementedError

    cdef int clear_row(self, char* row) except -1:
        raise NotImplementedError

    def dump(self, uint32_t chunk):
        """Bytes of one chunk: used map, rows, byte strings."""
        assert chunk < self.chunk_count
        return (<char*>(self.used + chunk * WORDS))[:WORDS * 8] + self.dump_rows(chunk)

    @property
    def chunk_total(self):
        """How many chunks there are."""
        return self.chunk_count

    cdef int keep(self, uint32_t chunk) except -1:
        try:
            self.copies[chunk] = self.dump(chunk)
        except MemoryError:  # who changes a row goes on: a snapshot can be made later
            self.copy_drop()
            self.dropped = True
        else:
            self.saved[chunk] = 1
        return 0

    def copy_begin(self):
        """Start a snapshot of this instant; one at a time."""
        assert not self.copying
        self.dropped = False
        memset(self.saved, 0, self.chunk_count)
        self.copying = True
        self.copy_at = 0
        self.copy_end = self.chunk_count

    def copy_next(self, size_t limit):
        """List of (chunk, bytes) of at least one chunk and about `limit` bytes; empty when the snapshot is complete.

        MemoryError when there was no room for a copy, also when a change wanted it: the snapshot is dropped.
        """
        out = []
        cdef size_t total = 0
        while self.copying and self.copy_at < self.copy_end and total < limit:
            if not self.saved[self.copy_at]:
                self.keep(self.copy_at)
                if self.dropped:
                    break
            data = self.copies.pop(self.copy_at)
            total += len(data)
            out.append((self.copy_at, data))
            self.copy_at += 1
        if self.dropped:
            raise MemoryError("no memory for a snapshot")
        if not out:
            self.copying = False
        return out

    def copy_drop(self):
        """End a snapshot, whole or not."""
        self.copying = False
        self.copies.clear()

    def slots(self, uint32_t start=0, uint32_t limit=0xFFFFFFFF):
        """Numbers of the rows in use from `start` on, ascending, at most `limit`: list of int."""
        out = []
        cdef uint32_t i = start
        while i < self.chunk_count * CHUNK and len(out) < limit:
            if not i & 63 and not self.used[i >> 6]:
                i += 64
                continue
            if self.live(i):
                out.append(i)
            i += 1
        return out
