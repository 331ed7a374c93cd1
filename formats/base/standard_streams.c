#include "formats/base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

void atsi_claim_standard_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDONLY); // the lowest number that is free
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}
