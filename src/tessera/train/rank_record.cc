#include "tessera/train/rank_record.h"

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/train/open_record.h"

namespace tessera {

void RankRecord::open(const RunSetup& setup, const CheckpointMeta& meta, RunSaves& saves) {
  if (leads_) {
    open_record(setup, meta, saves, record_);
  }
}

void RankRecord::note(const StepMetrics& step, std::optional<double> peak_flop_per_second) {
  unwritten_ = step;
  if (record_) {
    record_->show(step, peak_flop_per_second);
  }
}

void RankRecord::write(const StepMetrics& step, const RunSaves& saves) {
  if (record_) {
    unwritten_.reset();
    with_context([&] { return saves.last_good(); }, [&] { record_->write(step); });
  }
}

void RankRecord::write_rest(const RunSaves& saves) {
  if (unwritten_) {
    const StepMetrics step = *unwritten_;
    write(step, saves);
  }
}

std::string RankRecord::line_of(std::int64_t step) const {
  return unwritten_ && unwritten_->step == step ? to_json(*unwritten_) : std::string();
}

void RankRecord::inform(const std::string& message) {
  if (record_) {
    record_->inform(message);
  }
}

void RankRecord::warn(const std::string& message) {
  if (record_) {
    record_->warn(message);
  } else if (leads_) {
    log_warning(message);
  }
}

void RankRecord::show_validation(std::int64_t done, std::int64_t total) {
  if (record_) {
    record_->show_validation(done, total);
  }
}

bool RankRecord::write_validation(std::int64_t step, double loss) {
  if (record_) {
    record_->write_validation(step, loss);
  }
  return record_ != nullptr;
}

void RankRecord::clear_progress() {
  if (record_) {
    record_->clear_progress();
  }
}

void RankRecord::finish_progress() {
  if (record_) {
    record_->finish_progress();
  }
}

void RankRecord::end(const TrainResult& result) {
  if (record_) {
    record_->end(result);
  }
}

}  // namespace tessera
