#pragma once

#include <span>
#include <vector>

#include "tessera/comm/testing/conformance.h"

namespace tessera {

// Those of conformance_cases() and failure_cases() that are about channels.
std::span<const ConformanceCase> channel_cases();
std::vector<FailureCase> channel_failures();

}  // namespace tessera
