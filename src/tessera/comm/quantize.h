#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/communicator.h"
#include "tessera/ir/wire_format.h"

namespace tessera {

class ThreadTeam;  // base/thread_team.h

// Elements as they look on the wire.
//   f32, bf16: one after the other; bf16 is rounded to nearest, ties to even
//   int8, int4: for each block of B elements its scale (f32), then B codes. With q = 127 or 7 the
//     scale is max |x| / q, rounded up where q * scale would be less; code = x / scale, rounded to
//     nearest, ties to even; x is back as code * scale, off by at most half a scale. An int4 byte
//     holds the code of element i of the block in its low half, and of element i + B/2 in its high
//     half, both in two's complement. A block that holds an infinity or NaN is all NaN.
// Elements are f32 or bf16. The bytes depend on values alone, not on the team or the processor.

// to = from, then zeros up to `padded` elements, which are whole blocks. `to` holds wire_bytes() of
// these.
void encode(const ConstElements& from,
            std::int64_t padded,
            const Encoding& encoding,
            std::byte* to,
            ThreadTeam& team);

// to = the sum of the first to.count elements of every part, in f32 and in the order of the parts,
// rounded once to to.dtype.
void decode_sum(std::span<const std::byte* const> parts,
                const Encoding& encoding,
                const Elements& to,
                ThreadTeam& team);

}  // namespace tessera
