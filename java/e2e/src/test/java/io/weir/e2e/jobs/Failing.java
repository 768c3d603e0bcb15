package io.weir.e2e.jobs;

import org.apache.flink.api.common.functions.MapFunction;

/** Passes numbers on, and fails once when its control asks for it. */
public class Failing implements MapFunction<Long, Long> {
    private static final long serialVersionUID = 1L;

    private final Control control;

    public Failing(Control control) {
        this.control = control;
    }

    @Override
    public Long map(Long number) {
        control.maybeFail(Control.Failure.BEFORE_SNAPSHOT);
        return number;
    }
}
