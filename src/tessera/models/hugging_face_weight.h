#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// A tensor of a Hugging Face directory, made of one or several parameters of ours: a matrix (or a
// vector: one column) whose rows are those of its parts in another order, or, transposed, the
// matrix with these rows as columns.
struct HuggingFaceWeight {
  struct Part {
    std::string parameter;         // "layers.0.attention.wq.weight"
    std::int64_t rotary_rows = 0;  // of each head, that turn in pairs here and in halves there
    // Where parts lie one after the other:
    std::int64_t rows = 0;       // 0: as many as each of the others
    std::int64_t head_rows = 0;  // of a head; 0: all of the part
  };

  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::vector<Part> parts;
  std::vector<std::int64_t> shape;  // as in the file
  bool transposed = false;          // the file has (columns, rows)
  std::int64_t head_rows = 0;       // of one part that lie together, by turns; 0: all of it

  std::int64_t rows() const { return transposed ? shape[1] : shape[0]; }

  std::int64_t columns() const { return shape.size() == 1 ? 1 : transposed ? shape[0] : shape[1]; }

  // Of a part. A parameter may have more, which the file does not: padding of a vocabulary.
  std::int64_t part_rows(std::size_t part) const {
    return parts[part].rows > 0 ? parts[part].rows
                                : rows() / static_cast<std::int64_t>(parts.size());
  }
};

// A row of a weight's part.
struct PartRow {
  std::size_t part = 0;
  std::int64_t row = 0;

  friend bool operator==(const PartRow&, const PartRow&) = default;
};

// Which of our rows is row `row` of the weight. We turn pairs of rows (2i, 2i + 1) of a head by a
// rotary angle, as Meta's Llama does; transformers turn (i, i + rotary_rows / 2).
PartRow our_row(const HuggingFaceWeight& weight, std::int64_t row);

// The inverse.
std::int64_t their_row(const HuggingFaceWeight& weight, const PartRow& ours);

}  // namespace tessera
