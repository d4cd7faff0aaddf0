#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/file_digest.h"
#include "tessera/ir/dtype.h"

namespace tessera {

enum class TensorRole {
  kParameter,  // in the compute dtype
  kMoment1,    // first moment of the gradient
  kMoment2,    // second moment
  kMaster,     // f32 copy of a parameter that is kept in a shorter type
  kBuffer,     // what the model keeps beside its weights
};

// "parameter", "moment1", "moment2", "master", "buffer".
std::string_view to_string(TensorRole role);

// Whether tensors of this role are what the model computes with: they lie in the files of weights,
// under the model's own names.
bool is_of_model(TensorRole role);

// What a checkpoint holds besides tensors.
struct CheckpointMeta {
  std::int64_t step = 0;           // last step that ended
  std::int64_t applied_steps = 0;  // steps whose update was applied: the optimizer's step count
  std::int64_t tokens_seen = 0;
  std::uint64_t seed = 0;
  std::string model = {};        // JSON text; compared when a run resumes
  std::string config = {};       // the resolved config, as text
  std::string tokenizer = {};    // XXH3, 128 bits, of the run's tokenizer.json; empty: not known
  std::string data = {};         // the sizes of what it was trained on, in words; empty: not known
  std::string sum_order = {};    // XXH3, 128 bits, of the order in which microbatches are added up
                                 // (actions/sum_order.h); empty: as without a pipeline
  std::int64_t num_tensors = 0;  // of the whole checkpoint, in parts, too; 0: not known

  friend bool operator==(const CheckpointMeta&, const CheckpointMeta&) = default;
};

struct ManifestFile {
  std::string name;  // within the checkpoint's directory
  FileDigest digest;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// A part of a global tensor: elements [begin, begin + count), in row-major order, of a box of it. A
// box may reach over the end of a dim; its elements there are padding.
struct TensorSlice {
  std::vector<std::int64_t> offset;  // of the box, by dim
  std::vector<std::int64_t> extent;
  std::int64_t begin = 0;
  std::int64_t count = 0;

  friend bool operator==(const TensorSlice&, const TensorSlice&) = default;
};

// All of a tensor. The shape's elements fit 63 bits.
TensorSlice whole_slice(const std::vector<std::int64_t>& shape);

// Whether it is all of its box.
bool is_box(const TensorSlice& slice);

// Which file holds a slice, and under which name: with the box's shape where it is all of it, else
// with one dim of `count`.
struct ManifestSlice {
  std::string file;
  std::string key;
  TensorSlice part;

  friend bool operator==(const ManifestSlice&, const ManifestSlice&) = default;
};

// A global tensor, whatever the layout it was saved under: its slices cover it without overlap.
struct ManifestTensor {
  std::string name;
  TensorRole role = TensorRole::kParameter;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<ManifestSlice> slices;

  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

// "'layers.0.norm'", "'layers.0.norm' (moment1)".
std::string quote(std::string_view tensor, TensorRole role);

struct Manifest {
  CheckpointMeta meta;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Whether a manifest describes a checkpoint, or what one rank wrote of it.
enum class ManifestScope { kCheckpoint, kPart };

// That names of files and tensors are there once, every slice lies in its tensor, and, in a
// checkpoint, there are as many tensors as it is to have, and the slices of each hold each element
// once. Errors: kInvalidData naming the tensor and the place.
void verify(const Manifest& manifest, ManifestScope scope = ManifestScope::kCheckpoint);

// The checkpoint of which each rank wrote a part; not yet verified.
// Errors: kInvalidData where the parts are of different saves, or a tensor has two types.
Manifest merge(std::span<const Manifest> parts);

// JSON text that carries a checksum of itself.
// Errors: kInvalidArgument if meta.model is not JSON.
std::string print_manifest(const Manifest& manifest);

// The inverse of print_manifest, verified; `path` is for messages.
// Errors: kInvalidData where a byte was changed or a field is missing or of the wrong type, and as
// verify(); kUnsupported for a newer version of the format.
Manifest parse_manifest(std::string_view text,
                        const std::filesystem::path& path,
                        ManifestScope scope = ManifestScope::kCheckpoint);

}  // namespace tessera
