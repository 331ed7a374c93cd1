#include "runtime/pinned.h"

#include <stdio.h>
#include <string.h>

// ---- the host's memory --------------------------------------------------------------------------------------------

// The number behind `name` at the start of a line of a small text file, times `unit`; `missing` when there is none.
static uint64_t read_number(const char *path, const char *name, uint64_t unit, uint64_t missing) {
    char line[256];
    unsigned long long value;
    uint64_t found = missing;
    FILE *f = fopen(path, "r");
    if (!f) return missing;
    while (found == missing && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), "%llu", &value) == 1)
            found = value * unit;
    fclose(f);
    return found;
}

// What can be had without paging anything out: of the machine, and of the container where there is a limit. The page cache counts as
// free in both.
static uint64_t free_host_bytes(void) {
    uint64_t machine = read_number("/proc/meminfo", "MemAvailable:", 1024, UINT64_MAX / 2);
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "", 1, UINT64_MAX);
    if (limit == UINT64_MAX) return machine;
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "", 1, 0);
    uint64_t cache = read_number("/sys/fs/cgroup/memory.stat", "file ", 1, 0);
    used -= cache < used ? cache : used;
    uint64_t container = used < limit ? limit - used : 0;
    return container < machine ? container : machine;
}

// ---- pieces -------------------------------------------------------------------------------------------------------

static void add_piece(struct atsi_pinned *p, const uint8_t *host, const void *dev, uint64_t bytes) {
    p->pieces[p->n_pieces++] = (struct atsi_pinned_piece){host, dev, bytes};
}

static bool host_has_room(uint64_t bytes) {
    uint64_t free_bytes = free_host_bytes();
    return bytes <= free_bytes - free_bytes / 8;
}

bool atsi_pinned_register(struct atsi_pinned *p, const uint8_t *host, uint64_t bytes) {
    const void *dev;
    if (!p->device || bytes == 0 || p->n_pieces == ATSI_PINNED_PIECES_MAX || !host_has_room(bytes)) return false;
    if (p->device->ops->host_register(p->device, host, bytes, &dev, NULL) != ATSI_OK) return false;
    add_piece(p, host, dev, bytes);
    return true;
}

bool atsi_pinned_allocate(struct atsi_pinned *p, uint64_t bytes) {
    void *host, *dev;
    if (!p->device || bytes == 0 || p->n_pieces == ATSI_PINNED_PIECES_MAX || p->block) return false;
    if (!host_has_room(bytes)) return false;
    if (p->device->ops->host_alloc(p->device, bytes, &host, &dev, NULL) != ATSI_OK) return false;
    p->block = host;
    add_piece(p, host, dev, bytes);
    return true;
}

void atsi_pinned_free(struct atsi_pinned *p) {
    for (uint32_t i = 0; i < p->n_pieces; i++)
        if (p->pieces[i].host != p->block) p->device->ops->host_unregister(p->device, p->pieces[i].host);
    if (p->block) p->device->ops->host_free(p->device, p->block);
    *p = (struct atsi_pinned){0};
}

const void *atsi_pinned_address(const struct atsi_pinned *p, const void *host, uint64_t bytes) {
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        uintptr_t offset = (uintptr_t)host - (uintptr_t)p->pieces[i].host;
        if (offset < p->pieces[i].bytes && bytes <= p->pieces[i].bytes - offset) return p->pieces[i].dev + offset;
    }
    return NULL;
}

uint64_t atsi_pinned_run(const struct atsi_pinned *p, const void *host, uint64_t bytes, bool *pinned) {
    uint64_t run = bytes;
    *pinned = false;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        uintptr_t at = (uintptr_t)host, start = (uintptr_t)p->pieces[i].host;
        if (at >= start && at - start < p->pieces[i].bytes) {
            uint64_t left = p->pieces[i].bytes - (at - start);
            *pinned = true;
            return left < bytes ? left : bytes;
        }
        if (start > at && start - at < run) run = start - at;
    }
    return run;
}
