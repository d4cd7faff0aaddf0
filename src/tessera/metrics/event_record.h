#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

// TensorBoard's event files, byte by byte. A file is a row of records, each
//   u64 length | u32 masked CRC-32C of the length | length bytes | u32 masked CRC-32C of the bytes
// little-endian, whose bytes are an `Event` message in protobuf's wire format.
// Source: tensorflow/core/lib/io/record_writer.h, core/util/event.proto,
// core/framework/summary.proto

// CRC-32C (Castagnoli). Source: RFC 3720, section 12.1 and appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

// One curve's value at a step.
struct Scalar {
  std::string tag;
  float value = 0.0F;
};

// Records; `wall_time` is in seconds since 1970. A file starts with its version. A session's start
// tells readers that what they have of `step` and later is no longer so.
std::string version_record(double wall_time);
std::string session_start_record(double wall_time, std::int64_t step);
std::string scalars_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

// The start of an event file that a run which goes on after some step keeps.
struct KeptRecords {
  std::size_t bytes = 0;
  bool has_steps = false;                            // anything but version and sessions
  std::optional<std::size_t> damage = std::nullopt;  // where a record ends that is not right
};

// The records of `file` up to the first of a step after `last_step`, the first that is damaged, or
// the first that the file does not hold whole, as a kill leaves it (no damage).
KeptRecords kept_records(std::string_view file, std::int64_t last_step);

}  // namespace tessera
