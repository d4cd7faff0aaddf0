#pragma once

#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/op.h"

namespace tessera {

// The facets of an op from outside the tree, behind one pointer. Users do not derive from it: they
// write a struct with the overload set of ops/op.h plus workspace_bytes and run, and call
// make_custom_op(attrs).
class CustomFacets {
 public:
  CustomFacets() = default;
  virtual ~CustomFacets() = default;
  CustomFacets(const CustomFacets&) = delete;
  CustomFacets& operator=(const CustomFacets&) = delete;

  virtual OpInfo op_info() const = 0;
  virtual TensorTypes op_infer(Types in) const = 0;
  virtual FactorRule op_factors(Types in) const = 0;
  virtual Works op_work(Types in) const = 0;
  virtual void op_backward(GradBuilder& grad) const = 0;
  virtual Collectives op_collectives(Types in) const = 0;
  virtual OpRef op_rewritten(Types whole, const AxisSizes& axes) const = 0;
  virtual void op_visit(AttrVisitor& visitor) = 0;
  virtual std::int64_t op_workspace_bytes(cpu::Context& context, Types in) const = 0;
  virtual void op_run(cpu::Context& context, const Views& views) const = 0;
  virtual bool op_equal(const CustomFacets& other) const = 0;
  virtual std::shared_ptr<CustomFacets> op_clone() const = 0;
};

// The alternative of the op list that stands for every op from outside.
struct CustomOp {
  std::shared_ptr<CustomFacets> facets;  // shared with copies of the op; copied before it changes

  friend bool operator==(const CustomOp& a, const CustomOp& b) {
    return a.facets == b.facets || (a.facets && b.facets && a.facets->op_equal(*b.facets));
  }
};

OpInfo info(const CustomOp& op);
TensorTypes infer(const CustomOp& op, Types in);
FactorRule factors(const CustomOp& op, Types in);
Works work(const CustomOp& op, Types in);
void backward(const CustomOp& op, GradBuilder& grad);
Collectives collectives(const CustomOp& op, Types in);
OpRef rewritten(const CustomOp& op, Types whole, const AxisSizes& axes);
void visit(CustomOp& op, AttrVisitor& visitor);
std::int64_t workspace_bytes(const CustomOp& op, cpu::Context& context, Types in);
void run(const CustomOp& op, cpu::Context& context, const Views& views);

template <class A>
class CustomModel final : public CustomFacets {
 public:
  explicit CustomModel(A attrs) : attrs_(std::move(attrs)) {}

  const A& attrs() const { return attrs_; }

  OpInfo op_info() const override { return info(attrs_); }

  TensorTypes op_infer(Types in) const override { return infer(attrs_, in); }

  FactorRule op_factors(Types in) const override { return factors(attrs_, in); }

  Works op_work(Types in) const override { return work(attrs_, in); }

  void op_backward(GradBuilder& grad) const override { backward(attrs_, grad); }

  Collectives op_collectives(Types in) const override {
    if constexpr (requires { collectives(attrs_, in); }) {
      return collectives(attrs_, in);
    } else {
      return {};
    }
  }

  OpRef op_rewritten(Types whole, const AxisSizes& axes) const override {
    if constexpr (requires { rewritten(attrs_, whole, axes); }) {
      return rewritten(attrs_, whole, axes);
    } else {
      fail(ErrorCode::kInternal,
           "{} has no form of its own to be cut over {}",
           info(attrs_).name,
           to_string(axes));
    }
  }

  void op_visit(AttrVisitor& visitor) override { visit(attrs_, visitor); }

  std::int64_t op_workspace_bytes(cpu::Context& context, Types in) const override {
    return workspace_bytes(attrs_, context, in);
  }

  void op_run(cpu::Context& context, const Views& views) const override {
    run(attrs_, context, views);
  }

  bool op_equal(const CustomFacets& other) const override {
    const auto* same = dynamic_cast<const CustomModel*>(&other);
    return same != nullptr && same->attrs_ == attrs_;
  }

  std::shared_ptr<CustomFacets> op_clone() const override {
    return std::make_shared<CustomModel>(attrs_);
  }

 private:
  A attrs_;
};

// The op for graphs: builder.emit(make_custom_op(MyAttrs{...}), {x, y}). Errors: kInvalidArgument
// where its name is a built-in op's.
template <OpAttrs A>
OpRef make_custom_op(A attrs) {
  return make_op(CustomOp{std::make_shared<CustomModel<A>>(std::move(attrs))});
}

}  // namespace tessera
