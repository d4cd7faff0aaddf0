#pragma once

#include <cstdint>
#include <vector>

#include "tessera/ir/dtype.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/ops/gemm.h"

namespace tessera {

enum class WorkKind : std::uint8_t {
  kProduct,            // m x n sums of k products, `batch` times side by side
  kAttention,          // of m queries and n keys of k channels, `batch` times side by side
  kAttentionBackward,  // its gradients
  kStream,             // memory is read and written from end to end
  kGather,             // rows are read or written wherever they lie
  // A stream: what arrives from other ranks is added up, or its largest kept, by the communicator.
  // Where that has sums of its own (comm.reduction = "native"), it takes no time beside the wire's.
  kFold,
  // Here the op's collectives() run. Where there are several wires, each runs as many of their
  // calls
  // (`count` of each) as any other, in order. The bytes are those of operands and results that they
  // read and write themselves.
  kWire,
};

// One kernel of an op, as a device sees it.
struct Work {
  WorkKind kind = WorkKind::kStream;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t batch = 1;
  std::int64_t times = 1;         // equal ones, one after the other: all that follows is of all
  DType dtype = DType::kF32;      // of the factors
  std::int64_t row_bytes = 0;     // of a product: divides the ways from row to row of all matrices,
                                  // and from one of a batch to the next; of 8-bit factors, a column
                                  // of the result counts as a byte
  double pairs = 0.0;             // of attention: a query and a key that it may see
  std::int64_t borders = 0;       // of attention: ends of a query's keys that the mask sets
  double elementwise_flop = 0.0;  // beside those of products
  double bytes_read = 0.0;        // of operands, each once
  double bytes_written = 0.0;     // of results, each once
  double bytes_again = 0.0;       // of operands and results once more, and of a workspace

  friend bool operator==(const Work&, const Work&) = default;
};

// In the order in which they run.
using Works = std::vector<Work>;

double flop(const Work& work);

// `times` products, whose bytes are not counted yet.
Work product_work(const Gemm& gemm, std::int64_t times = 1);

// Adds all of `operands` to what is read, and all of `results` to what is written.
void count_bytes(Work& work, Types operands, Types results);

// A stream over all operands and results with `flop`.
Works streaming_work(double flop, Types operands, Types results);

// The same with `flop` for each element of operand 0.
Works elementwise_work(double flop, Types operands, Types results);

}  // namespace tessera
