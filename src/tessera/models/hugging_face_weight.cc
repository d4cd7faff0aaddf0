#include "tessera/models/hugging_face_weight.h"

namespace tessera {
namespace {

// Within a head, where our row `within` lies in a file, and back.
std::int64_t halves_of_pairs(std::int64_t within, std::int64_t rotary_rows) {
  const std::int64_t half = rotary_rows / 2;
  return within < 2 * half ? within % 2 * half + within / 2 : within;
}

std::int64_t pairs_of_halves(std::int64_t within, std::int64_t rotary_rows) {
  const std::int64_t half = rotary_rows / 2;
  return within < 2 * half ? within % half * 2 + within / half : within;
}

// Of a part that lies between others.
std::int64_t head_rows_of(const HuggingFaceWeight& weight, std::size_t part) {
  return weight.parts[part].head_rows > 0 ? weight.parts[part].head_rows : weight.part_rows(part);
}

}  // namespace

PartRow our_row(const HuggingFaceWeight& weight, std::int64_t row) {
  std::size_t part = 0;
  std::int64_t head = weight.head_rows;
  if (head > 0) {
    const auto num_parts = static_cast<std::int64_t>(weight.parts.size());
    part = static_cast<std::size_t>(row / head % num_parts);
    row = row / (head * num_parts) * head + row % head;
  } else {
    while (row >= weight.part_rows(part)) {
      row -= weight.part_rows(part++);
    }
    head = head_rows_of(weight, part);
  }
  return {.part = part,
          .row = row - row % head + pairs_of_halves(row % head, weight.parts[part].rotary_rows)};
}

std::int64_t their_row(const HuggingFaceWeight& weight, const PartRow& ours) {
  const std::int64_t rotary_rows = weight.parts[ours.part].rotary_rows;
  if (weight.head_rows > 0) {
    const std::int64_t head = weight.head_rows;
    const auto num_parts = static_cast<std::int64_t>(weight.parts.size());
    return (ours.row / head * num_parts + static_cast<std::int64_t>(ours.part)) * head +
           halves_of_pairs(ours.row % head, rotary_rows);
  }
  std::int64_t first = 0;
  for (std::size_t part = 0; part < ours.part; ++part) {
    first += weight.part_rows(part);
  }
  const std::int64_t head = head_rows_of(weight, ours.part);
  return first + ours.row - ours.row % head + halves_of_pairs(ours.row % head, rotary_rows);
}

}  // namespace tessera
