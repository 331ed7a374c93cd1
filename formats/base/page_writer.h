// page_writer.h: bytes of rising offsets, written to a new file in whole huge pages (2 MiB at multiples of 2 MiB).
//
// Where the page cache has huge pages (ext4 since Linux 6.16, XFS since 5.18), a write makes pages as large as itself. A file
// written in smaller pieces lies in small pages until it is read again, and what maps it is read 10 to 15 % slower (docs/kernels-cpu.md).
#ifndef ATSI_FORMATS_BASE_PAGE_WRITER_H
#define ATSI_FORMATS_BASE_PAGE_WRITER_H

#include "formats/base/new_file.h"

// Zeroed is ready. Owns the page.
struct atsi_page_writer {
    uint8_t *page;   // bytes that wait, NULL before the first ones
    uint64_t offset; // in the file, of the first one that waits
    uint64_t n_bytes;
};

// `offset` is not below the end of what was appended before; what lies between is zero. The bytes are copied or written.
enum atsi_status atsi_page_writer_append(struct atsi_page_writer *w, struct atsi_new_file *file, const void *data,
                                         uint64_t size_bytes, uint64_t offset, struct atsi_error *err);
// Writes what waits. Before the file is committed.
enum atsi_status atsi_page_writer_flush(struct atsi_page_writer *w, struct atsi_new_file *file, struct atsi_error *err);
void atsi_page_writer_free(struct atsi_page_writer *w);

#endif
