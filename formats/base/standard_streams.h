// standard_streams.h: what was started without standard input, output or error (`>&-`) must not open a file under their numbers.
#ifndef ATSI_FORMATS_BASE_STANDARD_STREAMS_H
#define ATSI_FORMATS_BASE_STANDARD_STREAMS_H

// Call it first in main. A closed stream becomes one that has nothing to read and cannot be written, so that no message ends up in a file.
void atsi_claim_standard_streams(void);

#endif
