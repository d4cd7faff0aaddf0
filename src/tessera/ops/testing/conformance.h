#pragma once

#include <string>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/ops/testing/sample.h"

// The checks that every op passes, of the list or from outside. Each returns what is wrong, a
// sentence each; nothing where all is well. None needs a test framework.
namespace tessera::conformance {

using Failures = std::vector<std::string>;

// The CPU kernel against the reference at the tolerance of the sample's class, with one thread and
// with several. It writes every element of its results and nothing else, needs no more workspace
// than it asked for, depends on no memory but its operands', and gives the same bits when results
// lie over operands as info() allows, and when operands and results are slices.
Failures check_kernel(const Sample& sample);

// The same for the kernel of a backend, in the backend's memory.
Failures check_kernel_on(Backend& backend, const Sample& sample);

// backward(), evaluated by references in f64, against finite differences of the op's reference:
// with all gradients wanted, and with each wanted alone. An op without gradients must refuse with a
// reason.
Failures check_gradient(const Sample& sample);

// Attributes print, parse back and compare, each of them changed in turn.
Failures check_attributes(const Sample& sample);

// The factor rule parses, fits the types, and is consistent; the work is finite, and has a wire
// where the op communicates.
Failures check_factors(const Sample& sample);

// Shard equivalence: for each factor that may be split and whose bounds are even, the op on both
// halves gives, concatenated or summed as the rule says, the result of the whole. Where the rule
// wants another form of the op for that, it runs on two ranks that are threads, and odd bounds are
// padded.
Failures check_shards(const Sample& sample);

// All of the above; each sentence starts with the sample's full name.
Failures check_op(const Sample& sample);

// Factors that check_shards() does not split though the rule allows it: their bounds are odd, or
// the sample gives a reason.
struct Unsplit {
  std::vector<std::string> odd;
  std::vector<std::string> excluded;
  int num_split = 0;
};

Unsplit unsplit_factors(const Sample& sample);

// Types, factor rule and cost of the sample as text, for golden files.
std::string describe(const Sample& sample);

}  // namespace tessera::conformance
