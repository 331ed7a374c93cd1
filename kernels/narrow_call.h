// narrow_call.h: a call of a part of an operation. The runtime divides operations between both sides with it, the profiler times parts.
#ifndef ATSI_KERNELS_NARROW_CALL_H
#define ATSI_KERNELS_NARROW_CALL_H

#include "kernels/op_call.h"

// What a call of a part of an operation points to instead of the program's own op and tensors.
struct atsi_call_part {
    struct atsi_op op;
    struct atsi_tensor tensors[2];
};
// Narrows a call to the output columns [begin, end): MATMUL by rows of the weight (begin a multiple of 16), EXPERTS by whole slots,
// elementwise operations by columns. `part` must live as long as the call.
void atsi_narrow_call(struct atsi_op_call *call, uint32_t begin, uint32_t end, struct atsi_call_part *part);

#endif
