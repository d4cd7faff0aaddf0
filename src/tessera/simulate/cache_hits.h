#pragma once

#include <vector>

#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"

namespace tessera {

// Which share of the bytes of an instruction's operands and results still lie in a cache of
// `cache_bytes` when it runs, by the bytes that were touched since they were: once for each, of
// stream 0, step after step. Bytes are known by where tensors begin in the arena, or in their
// buffer's slot where the program has no offsets yet. Between cost/constants.h's kCachedUpTo and
// kCachedBelow of the cache they are there in part. By place of IssueStep, in the mean over a step;
// 0 where nothing works.
std::vector<double> cached_shares(const Program& program,
                                  const IssueOrder& order,
                                  double cache_bytes);

// Of what was touched `bytes` ago.
double cached_share(double bytes, double cache_bytes);

}  // namespace tessera
