package org.apache.flink.runtime.state.ttl;

/** {@link TtlConformance} on savepoints, with a working set that holds few rows. */
class SavepointSmallWorkingSetTtlTest extends TtlConformance {
    SavepointSmallWorkingSetTtlTest() {
        super("64kb", true);
    }
}
