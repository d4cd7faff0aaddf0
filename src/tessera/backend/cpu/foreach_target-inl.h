// Compiles the including file once per instruction set; include before simd-inl.h, with
// HWY_TARGET_INCLUDE naming the file. Three sets keep builds short: AVX-512, AVX2 (any x86 server
// since 2013), and plain scalar code for the rest.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

#include <hwy/foreach_target.h>
