#pragma once

#include <filesystem>

namespace tessera {

struct ImportOptions {
  std::filesystem::path source;      // a Hugging Face directory
  std::filesystem::path checkpoint;  // a directory that is not there
};

// Writes the weights of a Hugging Face directory, and its tokenizer where it has one, of whichever
// form, as a checkpoint of step 0 without optimizer state. What is stored as it lies in the files
// is not copied in memory. Errors: as read_hugging_face_model()
// and HuggingFaceWeights; as load_tokenizer(); kInvalidConfig for a checkpoint
// that exists; kDeviceError.
void import_weights(const ImportOptions& options);

}  // namespace tessera
