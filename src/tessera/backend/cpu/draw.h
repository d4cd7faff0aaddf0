#pragma once

#include "tessera/base/random.h"
#include "tessera/ir/view.h"

namespace tessera {

class ThreadTeam;  // base/thread_team.h

}  // namespace tessera

namespace tessera::cpu {

// Backend::draw() in the host's memory. Errors: kUnsupported for dtypes other than f32 and bf16.
void draw_elements(const Initial& initial, const View& out, ThreadTeam& team);

}  // namespace tessera::cpu
