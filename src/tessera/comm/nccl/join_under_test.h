#pragma once

#include <memory>

#include "tessera/comm/nccl/nccl_world.h"

namespace tessera {

// As join_nccl_world(): of the plugin, or of its code over what stands in for GPUs and their
// libraries.
std::unique_ptr<NcclWorld> join_under_test(World& host, const NcclOptions& options);

// A deadline that passes in a test, and in which a group comes about there: GPUs take seconds.
double short_deadline_seconds();

}  // namespace tessera
