#include "formats/base/page_writer.h"

#include <stdlib.h>
#include <string.h>

enum {
    PAGE_BYTES = 2 << 20
};

enum atsi_status atsi_page_writer_flush(struct atsi_page_writer *w, struct atsi_new_file *file,
                                        struct atsi_error *err) {
    if (!w->n_bytes) return ATSI_OK;
    ATSI_TRY(atsi_new_file_write(file, w->page, w->n_bytes, w->offset, err));
    w->offset += w->n_bytes;
    w->n_bytes = 0;
    return ATSI_OK;
}

// Zeros up to `offset` when that lies in the page that waits, else the page is written as it is.
static enum atsi_status skip_to(struct atsi_page_writer *w, struct atsi_new_file *file, uint64_t offset,
                                struct atsi_error *err) {
    uint64_t end = w->offset + w->n_bytes;
    if (w->n_bytes && offset / PAGE_BYTES == w->offset / PAGE_BYTES) {
        memset(w->page + w->n_bytes, 0, offset - end);
        w->n_bytes += offset - end;
        return ATSI_OK;
    }
    ATSI_TRY(atsi_page_writer_flush(w, file, err));
    w->offset = offset;
    return ATSI_OK;
}

enum atsi_status atsi_page_writer_append(struct atsi_page_writer *w, struct atsi_new_file *file, const void *data,
                                         uint64_t size_bytes, uint64_t offset, struct atsi_error *err) {
    const uint8_t *p = data;
    if (!w->page && !(w->page = malloc(PAGE_BYTES))) return atsi_out_of_memory(err);
    ATSI_TRY(skip_to(w, file, offset, err));
    while (size_bytes) {
        uint64_t room = PAGE_BYTES - (w->offset + w->n_bytes) % PAGE_BYTES, n = size_bytes < room ? size_bytes : room;
        memcpy(w->page + w->n_bytes, p, n);
        w->n_bytes += n;
        p += n;
        size_bytes -= n;
        if (n == room) ATSI_TRY(atsi_page_writer_flush(w, file, err));
    }
    return ATSI_OK;
}

void atsi_page_writer_free(struct atsi_page_writer *w) {
    free(w->page);
    *w = (struct atsi_page_writer){0};
}
