#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/program/program.h"

namespace tessera {

// Drawn programs of ranks along an axis "pipeline" that send tensors to each other. They match:
// every rank issues its part of one order of all transfers, on streams of its own choice.
struct RandomTransfers {
  // A tensor that goes from one rank to another in each microbatch.
  struct Transfer {
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::int64_t number = 0;
    std::int64_t used_after = 0;  // sends that the receiver issues before it reads the tensor
  };

  std::int64_t num_ranks = 2;
  std::int64_t num_microbatches = 1;
  std::int64_t num_streams = 1;  // of transfers
  std::int64_t count = 1;        // elements of each tensor
  std::uint64_t seed = 0;        // of what follows from it
  std::vector<Transfer> transfers = {};

  static RandomTransfers draw(std::uint64_t seed);

  // The stream of a rank's end of the transfer's channel, from 0.
  std::size_t stream_of(std::int64_t rank, const Transfer& transfer) const;

  // Planned. Each rank has an input "x", to which it adds what it receives, in the order of use;
  // what it sends is the sum so far; its state and output "sum" adds up those of all microbatches.
  std::vector<Program> programs() const;

  // What a rank adds to every element of "sum" in each microbatch, where all elements of the inputs
  // are `x(rank, microbatch)`.
  template <class Input>
  std::vector<float> parts(std::size_t rank, const Input& x) const {
    std::vector<float> parts;
    for (std::int64_t m = 0; m < num_microbatches; ++m) {
      std::vector<float> now;
      for (std::int64_t each = 0; each < num_ranks; ++each) {
        now.push_back(x(each, m));
      }
      add_received(now);
      parts.push_back(now[rank]);
    }
    return parts;
  }

 private:
  void add_received(std::vector<float>& now) const;
};

}  // namespace tessera
