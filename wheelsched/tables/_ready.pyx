"""Which ready runs go next: what one worker may have, chosen one run at a time.

    rank         priority (9 first) and waiting: one step up for each so many microseconds since the run entered its queue, 9 at most;
                 within a step what makes up for the past comes last
    queues       of equal rank, queues take turns
    namespaces   of one queue take turns by weight (start-time fair queueing). Each has a clock for each rank, which a lease moves on by
                 1/weight; the one whose clock is behind the others is next. Who comes back from having nothing to do starts at the clock
                 of the last one served: it is next, and has saved up nothing. Of two namespaces that have runs all the time none gets more
                 than one lease a weight ahead of the other, in however many lines its runs stand
    runs         of a namespace: the head of a line with the earliest deadline for a start, then heads that have none; of equal ones the
                 run that entered its queue first

Within a line (equal queue, priority, namespace, task, keys and `expires_after`) runs go in the order in which they entered it, so
deadlines are compared between lines, not within one. A limit that is used up takes its own lines out of the choice.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from wheelsched.tables._rows cimport NONE
from wheelsched.tables._run cimport BY_BACKFILL, MOVED, Run
from wheelsched.tables._runrows cimport List, RunRows

import numpy as np

cdef enum:
    FREE = 64
    RANKS = 20  # ten priorities, each with what makes up for the past below it
    ROOT = 0
    QUEUE = 1
    NAMESPACE = 2
    LINE = 3
    TURN = 720_720  # what a lease moves a clock on at weight 1: all weights up to 16 divide it, and it leaves room for 10**13 leases

cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF

cdef struct Node:
    int32_t rank         # of the best below it
    int64_t clock        # of a queue or a namespace, at that rank
    int64_t deadline     # of a line's first run
    uint64_t order
    uint32_t number      # of the queue, the namespace or the line
    uint32_t run         # of a line: the first that was not taken
    uint32_t up
    uint32_t kids        # where its heap begins
    uint32_t count
    uint8_t kind

cdef struct Group:
    int64_t clock[RANKS]
    int64_t stride
    uint32_t stamp
    uint32_t node

cdef struct Queue:
    int64_t clock[RANKS]
    int64_t served[RANKS]  # clock of the namespace that was served last
    int64_t left
    int64_t wanted
    uint32_t stamp
    uint32_t node

cdef struct Room:
    int64_t left
    uint32_t stamp


cdef void* _grown(void* data, uint32_t* have, uint32_t want, size_t each) except NULL:
    """Room for so many, the new ones zeroed."""
    cdef uint32_t size = max(want, 2 * have[0], 16)
    cdef char* fresh = <char*>realloc(data, size * each)
    if fresh == NULL:
        raise MemoryError("no memory for the ready lines")
    memset(fresh + have[0] * each, 0, (size - have[0]) * each)
    have[0] = size
    return fresh


cdef inline bint _before(Node* a, Node* b) noexcept nogil:
    if a.rank != b.rank:
        return a.rank > b.rank
    if a.clock != b.clock:
        return a.clock < b.clock
    if a.deadline != b.deadline:
        return a.deadline < b.deadline
    return a.order < b.order


cdef class Ready:
    """Whose turn it is among the ready lines of a run table. Clocks are soft: a restart begins with equal ones."""

    cdef RunRows runs
    cdef Group* groups
    cdef Queue* queues
    cdef Room* rooms      # by number of a key
    cdef Node* nodes
    cdef uint32_t* heap
    cdef uint32_t* lines  # that were found by `look`
    cdef uint32_t group_size, queue_size, room_size, node_size, heap_size, line_size, line_count, node_count, looks
    cdef int64_t root_served[RANKS]
    cdef int64_t step_us, wall_us
    cdef readonly int64_t visit_us  # when a namespace had its last ready run taken while others still waited; negative: never

    def __cinit__(self, RunRows runs, int64_t step_us):
        self.runs, self.step_us, self.visit_us = runs, step_us, -1
        memset(self.root_served, 0, sizeof(self.root_served))

    def __dealloc__(self):
        free(self.groups)
        free(self.queues)
        free(self.rooms)
        free(self.nodes)
        free(self.heap)
        free(self.lines)

    def weigh(self, uint32_t group, uint32_t weight):
        """The weight of a namespace in its queue; 1 unless it was told."""
        assert weight > 0
        self.need_group(group)
        self.groups[group].stride = TURN // weight

    cdef int need_group(self, uint32_t group) except -1:
        cdef uint32_t i, before = self.group_size
        if group >= before:
            self.groups = <Group*>_grown(self.groups, &self.group_size, group + 1, sizeof(Group))
            for i in range(before, self.group_size):
                self.groups[i].stride = TURN
        return 0

    def look(self, const uint8_t[::1] tasks, const uint8_t[::1] queues, const int64_t[::1] key_most, const uint8_t[::1] rated,
             bint unlimited=False):
        """Find the lines of these tasks and queues (1 for each that counts, by number; no queues: all) whose keys and jobs have room.

        `key_most`: leases of a key, by queue; `rated`: queues whose keys have a rate. (numbers of the queues that have such lines, numbers
        of keys under a rate, and the queue of each). With `unlimited` no key and no job is full.
        """
        cdef uint32_t i, number
        cdef List* line
        cdef Queue* queue
        cdef int64_t left
        self.looks += 1
        self.line_count = 0
        if self.runs.queue_count > self.queue_size:
            self.queues = <Queue*>_grown(self.queues, &self.queue_size, self.runs.queue_count, sizeof(Queue))
        if self.runs.key_count > self.room_size:
            self.rooms = <Room*>_grown(self.rooms, &self.room_size, self.runs.key_count, sizeof(Room))
        if self.runs.filled_count > self.line_size:
            self.lines = <uint32_t*>_grown(self.lines, &self.line_size, self.runs.filled_count, sizeof(uint32_t))
        for i in range(self.runs.filled_count):
            line = &self.runs.lists[self.runs.filled[i]]
            if line.job:  # while runs with different numbers wait, the smallest counts
                left = NEVER if unlimited else <int64_t>line.job_most - self.runs.key_leased[line.job]
                if self.rooms[line.job].stamp != self.looks or left < self.rooms[line.job].left:
                    self.rooms[line.job] = Room(left, self.looks)
        found, keys, owners = [], [], []
        for i in range(self.runs.filled_count):
            number = self.runs.filled[i]
            line = &self.runs.lists[number]
            if not tasks[line.task] or (queues.shape[0] and not queues[line.queue]):
                continue
            left = line.count
            if line.key:
                if self.rooms[line.key].stamp != self.looks:
                    self.rooms[line.key] = Room(
                        NEVER if unlimited else key_most[line.queue] - self.runs.key_leased[line.key], self.looks)
                    if rated[line.queue] and self.rooms[line.key].left > 0:
                        keys.append(line.key)
                        owners.append(line.queue)
                left = min(left, self.rooms[line.key].left)
            if line.job:
                left = min(left, self.rooms[line.job].left)
            if left <= 0:
                continue
            queue = &self.queues[line.queue]
            if queue.stamp != self.looks:
                queue.stamp, queue.node, queue.wanted, queue.left = self.looks, NONE, 0, NEVER
                found.append(line.queue)
            queue.wanted += left
            self.lines[self.line_count] = number
            self.line_count += 1
        return found, keys, owners

    def queue_left(self, uint32_t queue, int64_t left):
        """What the limits of a queue leave, after `look`."""
        self.queues[queue].left = left

    def key_left(self, uint32_t key, int64_t left):
        """What the rate of a key leaves, after `look`."""
        self.rooms[key].left = min(left, self.rooms[key].left)

    def take(self, int64_t wall_us, int64_t mono_us, uint32_t credit, uint32_t sharing, const double[::1] costs, double budget):
        """Rows for one of `sharing` workers that ask, in the order in which they go: uint32 array.

        At most `credit`, and after the first 64 no more once `costs` (by number of the task) of what was taken have reached the budget.
        """
        cdef int64_t total = 0
        cdef uint32_t i
        self.build(wall_us)
        for i in range(1, 1 + self.nodes[ROOT].count):
            total += min(self.queues[self.nodes[i].number].left, self.queues[self.nodes[i].number].wanted)
        credit = <uint32_t>min(<int64_t>credit, (total + sharing - 1) // sharing)
        out = np.empty(credit, np.uint32)
        n, emptied = self.serve(out, costs, budget, NONE)
        if emptied and self.nodes[ROOT].count:
            self.visit_us = mono_us
        return out[:n] if n < credit else out

    def before(self, uint32_t run, uint32_t limit, int64_t wall_us):
        """(rows that would be taken before this one, True), or (the first `limit` that would be taken, False), after `look`."""
        cdef size_t groups = self.group_size * sizeof(Group), queues = self.queue_size * sizeof(Queue)
        cdef char* kept = <char*>malloc(groups + queues + sizeof(self.root_served))
        if kept == NULL:
            raise MemoryError("no memory for a look ahead")
        try:
            memcpy(kept, self.groups, groups)
            memcpy(kept + groups, self.queues, queues)
            memcpy(kept + groups + queues, self.root_served, sizeof(self.root_served))
            self.build(wall_us)
            out = np.empty(limit, np.uint32)
            n, _ = self.serve(out, np.zeros(0), 0.0, run)
            memcpy(self.groups, kept, min(groups, self.group_size * sizeof(Group)))
            memcpy(self.queues, kept + groups, queues)
            memcpy(self.root_served, kept + groups + queues, sizeof(self.root_served))
        finally:
            free(kept)
        if n and out[n - 1] == run:
            return out[: n - 1], True
        return out[:n], False

    # Nodes: the root, then queues, namespaces and lines, each with a heap of those below it

    cdef int build(self, int64_t wall_us) except -1:
        cdef uint32_t i, k, at, n = 1, most = 1 + 3 * self.line_count
        cdef List* line
        cdef Node* node
        self.wall_us = wall_us
        if most > self.node_size:
            self.nodes = <Node*>_grown(self.nodes, &self.node_size, most, sizeof(Node))
            self.heap = <uint32_t*>_grown(self.heap, &self.heap_size, most, sizeof(uint32_t))
        self.nodes[ROOT] = Node(0, 0, 0, 0, 0, NONE, ROOT, 0, 0, ROOT)
        for i in range(self.line_count):  # queues
            line = &self.runs.lists[self.lines[i]]
            if self.queues[line.queue].left > 0 and self.queues[line.queue].node == NONE:
                self.queues[line.queue].node = n
                self.nodes[n] = Node(0, 0, 0, 0, line.queue, NONE, ROOT, 0, 0, QUEUE)
                self.nodes[ROOT].count += 1
                n += 1
        for i in range(self.line_count):  # namespaces
            line = &self.runs.lists[self.lines[i]]
            self.need_group(line.group)
            if self.queues[line.queue].left > 0 and self.groups[line.group].stamp != self.looks:
                self.groups[line.group].stamp, self.groups[line.group].node = self.looks, n
                self.nodes[n] = Node(0, 0, 0, 0, line.group, NONE, self.queues[line.queue].node, 0, 0, NAMESPACE)
                self.nodes[self.queues[line.queue].node].count += 1
                n += 1
        for i in range(self.line_count):  # lines
            line = &self.runs.lists[self.lines[i]]
            if self.queues[line.queue].left > 0:
                self.nodes[n] = Node(0, 0, 0, 0, self.lines[i], line.head, self.groups[line.group].node, 0, 0, LINE)
                self.nodes[self.groups[line.group].node].count += 1
                n += 1
        self.node_count = n
        at = 0
        for i in range(n):
            self.nodes[i].kids = at
            at += self.nodes[i].count
            self.nodes[i].count = 0
        for i in range(1, n):
            node = &self.nodes[self.nodes[i].up]
            self.heap[node.kids + node.count] = i
            node.count += 1
        for i in range(n - 1, -1, -1):  # from the lines up
            node = &self.nodes[i]
            for k in range(node.count // 2, 0, -1):
                self.sift(node, k - 1)
            self.refresh(node)
        return 0

    cdef void refresh(self, Node* node) noexcept nogil:
        """Take over what the best below it, or a line's first run, says."""
        cdef Node* best
        cdef Run* run
        cdef List* line
        if node.kind == LINE:
            line, run = &self.runs.lists[node.number], self.runs.run(node.run)
            node.rank = 2 * <int32_t>min(9, line.priority + max(0, self.wall_us - run.queued_us) // self.step_us) + (not line.backlog)
            node.order, node.deadline = run.order, NEVER
            if line.expires_us >= 0:
                node.deadline = line.expires_us + (
                    run.due_us if run.disposition == MOVED else run.created_us if run.trigger == BY_BACKFILL
                    else max(run.nominal_us, run.due_us))
            return
        if node.count == 0:
            return
        best = &self.nodes[self.heap[node.kids]]
        node.rank, node.order = best.rank, best.order
        if node.kind == NAMESPACE:
            node.clock = max(self.groups[node.number].clock[node.rank], self.queues[self.nodes[node.up].number].served[node.rank])
        elif node.kind == QUEUE:
            node.clock = max(self.queues[node.number].clock[node.rank], self.root_served[node.rank])

    cdef void sift(self, Node* node, uint32_t k) noexcept nogil:
        """Let the k-th of a heap sink to its place."""
        cdef uint32_t* heap = self.heap + node.kids
        cdef uint32_t kid, moved = heap[k]
        while 2 * k + 1 < node.count:
            kid = 2 * k + 1
            if kid + 1 < node.count and _before(&self.nodes[heap[kid + 1]], &self.nodes[heap[kid]]):
                kid += 1
            if not _before(&self.nodes[heap[kid]], &self.nodes[moved]):
                break
            heap[k] = heap[kid]
            k = kid
        heap[k] = moved

    cdef void settle(self, Node* node, bint gone) noexcept nogil:
        """The best below a node has changed, or is gone: put the heap and the node right."""
        if gone:
            node.count -= 1
            self.heap[node.kids] = self.heap[node.kids + node.count]
        if node.count:
            self.sift(node, 0)
        self.refresh(node)

    cdef bint full(self, List* line) noexcept nogil:
        return (line.key and self.rooms[line.key].left <= 0) or (line.job and self.rooms[line.job].left <= 0)

    cdef tuple serve(self, uint32_t[::1] out, const double[::1] costs, double budget, uint32_t until):
        """Take runs until `out` is full, the budget is spent or `until` was taken: (how many, whether some namespace has no more)."""
        cdef uint32_t n = 0
        cdef Node *root = &self.nodes[ROOT]
        cdef Node *queue
        cdef Node *group
        cdef Node *one
        cdef List* line
        cdef bint emptied = False
        while root.count and n < <uint32_t>out.shape[0]:
            queue = &self.nodes[self.heap[root.kids]]
            group = &self.nodes[self.heap[queue.kids]]
            one = &self.nodes[self.heap[group.kids]]
            line = &self.runs.lists[one.number]
            if not self.full(line):  # which another one may have made it meanwhile
                out[n] = one.run
                n += 1
                self.spend(queue, group, line)
                if one.run == until:
                    break
                if costs.shape[0]:
                    budget -= costs[line.task]
                one.run = self.runs.run(one.run).next
                if one.run != NONE:
                    self.refresh(one)
            self.settle(group, one.run == NONE or self.full(line))
            emptied |= group.count == 0
            self.settle(queue, group.count == 0)
            self.settle(root, queue.count == 0 or self.queues[queue.number].left <= 0)
            if n >= FREE and budget <= 0 and costs.shape[0]:
                break
        return n, emptied

    cdef void spend(self, Node* queue, Node* group, List* line) noexcept nogil:
        """Move the clocks on, and take a place in each limit."""
        cdef int32_t rank = group.rank
        cdef Queue* q = &self.queues[queue.number]
        self.root_served[rank] = queue.clock
        q.clock[rank] = queue.clock + TURN
        q.served[rank] = group.clock
        self.groups[group.number].clock[rank] = group.clock + self.groups[group.number].stride
        q.left -= 1
        self.rooms[line.key].left -= line.key > 0
        self.rooms[line.job].left -= line.job > 0
