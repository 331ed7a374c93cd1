// output_file.h: a file that a program writes bit by bit while it runs, as a stdio stream.
//
// A regular file appears complete or not at all (new_file.h). A pipe or a device is written as it is, and so is a file to which standard
// output or standard error goes, behind what stands there. What cannot be written is told when the file is closed, with its cause; until
// then the stream takes everything.
#ifndef ATSI_FORMATS_BASE_OUTPUT_FILE_H
#define ATSI_FORMATS_BASE_OUTPUT_FILE_H

#include <stdio.h>

#include "formats/base/error.h"

struct atsi_output_file;

// ATSI_FAILED, for a folder ATSI_BAD_INPUT, naming the file.
enum atsi_status atsi_output_file_open(struct atsi_output_file **out, const char *path, struct atsi_error *err);
FILE *atsi_output_file_stream(struct atsi_output_file *file); // cannot seek; not to be closed
// Ends the file and gives it its name. ATSI_FAILED when anything could not be written: then there is none. NULL is fine.
enum atsi_status atsi_output_file_close(struct atsi_output_file *file, struct atsi_error *err);
// The file is not wanted any more. NULL is fine.
void atsi_output_file_discard(struct atsi_output_file *file);

#endif
