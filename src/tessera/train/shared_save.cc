#include "tessera/train/shared_save.h"

#include <exception>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/save_directory.h"
#include "tessera/train/run_record.h"

namespace tessera {

SharedSave::SharedSave(RankControl& control, const SaverOptions& options)
    : control_(control), options_(options), saver_(options) {}

void SharedSave::name_launch() {
  options_.launch = control_.from_leader(control_.leads() ? make_launch_name() : "");
  saver_.set_options(options_);
}

void SharedSave::move_to(const std::filesystem::path& run_dir) {
  options_.home = run_dir;
  options_.record = metrics_file(run_dir);
  saver_.set_options(options_);
}

void SharedSave::put_beside(std::string name, std::string text) {
  options_.beside.insert_or_assign(std::move(name), std::move(text));
  saver_.set_options(options_);
}

void SharedSave::start(UnderWay save,
                       const CheckpointMeta& meta,
                       std::span<const CheckpointTensor> tensors) {
  under_way_ = std::move(save);
  if (under_way_.how != How::kBackground) {
    saver_.start_in_place(under_way_.path, meta, tensors);
  } else {
    saver_.start(under_way_.path, meta, tensors);
  }
}

void SharedSave::wait() {
  control_.patiently("writing its part of a checkpoint", [&] { saver_.wait(); });
}

std::string SharedSave::end(bool failed) {
  return failed ? failure() : published();
}

// Why the first rank that failed could not write its part of the save, which is given up.
std::string SharedSave::failure() {
  const bool own = saver_.status() == SaveStatus::kFailed;
  const std::string own_reason = own ? saver_.error().what() : "";
  // Before any rank may begin the next save.
  saver_.abandon();
  std::string reason;
  for (const std::string& text : control_.from_all(own_reason)) {
    reason = reason.empty() ? text : reason;
  }
  return reason;
}

// Why rank 0 could not publish what all ranks have written; empty where it could.
std::string SharedSave::published() {
  std::string reason;
  control_.patiently("giving a checkpoint its name", [&] {
    try {
      saver_.finish();
    } catch (const std::exception& error) {
      reason = error.what();
    }
  });
  return control_.from_leader(reason);
}

bool SharedSave::end_alone() {
  if (saver_.wait() != SaveStatus::kWritten || !control_.is_alone()) {
    return false;
  }
  saver_.finish();
  return true;
}

void SharedSave::describe(LastSave& last) const {
  last.options = options_;
  last.options.copies = false;
  last.options.first_attempt = saver_.attempt(last.directory);
  if (is_under_way() && under_way_.step == last.meta.step) {
    last.under_way = true;
    last.torn = saver_.status() == SaveStatus::kFailed ? saver_.error().what() : "";
  }
}

}  // namespace tessera
